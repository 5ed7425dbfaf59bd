"""The `tinker` backend's own config keys. Those of rLLM keep their names and defaults."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
LOCAL = "local"
DEFAULT_MODEL = "Qwen/Qwen3-8B"
DEFAULT_LOCAL_DIR = "/tmp/rllm-tinker-checkpoints"


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelSection(Section):
    name: str = Field(
        DEFAULT_MODEL,
        description="Base model, as the service calls it. With `tinker_base_url=local` a folder, a hub id or `tiny` "
        "(then the default).",
    )
    tokenizer: str | None = Field(
        None, description="Tokenizer and chat template: a folder, a hub id or `tiny`; null: those of `model.name`."
    )
    lora_rank: PositiveInt = Field(32, description="LoRA rank.")
    train_unembed: bool = Field(True, description="Train LoRA on the output embedding layer.")
    train_attn: bool = Field(True, description="Train LoRA on attention layers.")
    train_mlp: bool = Field(True, description="Train LoRA on MLP layers.")


class TrainingSection(Section):
    group_size: PositiveInt = Field(8, description="Rollouts per prompt; the same as `rllm.rollout.n`.")
    learning_rate: float = Field(2e-5, gt=0, description="AdamW learning rate after warm-up.")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="How the learning rate falls to 0 over the run."
    )
    warmup_steps_ratio: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="Share of the run in which the learning rate rises."
    )
    beta1: Fraction = Field(0.9, description="AdamW beta1.")
    beta2: Fraction = Field(0.95, description="AdamW beta2.")
    eps: float = Field(1e-8, gt=0, description="AdamW epsilon.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay of the LoRA weights.")
    max_grad_norm: float = Field(0.0, ge=0, description="Gradients are scaled down to this norm; 0: they are not.")
    max_length: PositiveInt = Field(32768, description="Most tokens of a conversation.")
    num_epochs: PositiveInt = Field(1, description="Passes over a step's batch.")
    num_minibatches: PositiveInt = Field(1, description="Optimiser steps per pass, each on its share of the rows.")
    default_local_dir: str = Field(
        DEFAULT_LOCAL_DIR, description="Where the server of `tinker_base_url=local` keeps checkpoints."
    )
    resume_from_tinker_id: str | None = Field(
        None,
        description="Start from these weights and their optimiser state: a path `tinker://RUN/weights/NAME`, or a "
        "training run, whose newest checkpoint counts.",
    )


class ValidationSection(Section):
    group_size: PositiveInt = Field(
        1, description="Rollouts per prompt in validation; the same as `rllm.rollout.n_val`."
    )


class RolloutEngineSection(Section):
    reasoning_effort: str = Field("medium", description="For chat templates that have such a switch.")
    accumulate_reasoning: bool = Field(False, description="The same as `rllm.accumulate_reasoning`.")
    disable_thinking: bool = Field(False, description="The same as `rllm.disable_thinking`.")
    renderer_name: str | None = Field(
        None, description="Must be null: messages become tokens by the tokenizer's chat template."
    )
    weights: Literal["snapshot", "inflight"] = Field(
        "snapshot",
        description="How weights are published: as a snapshot of each step, or, with `inflight`, into one set of "
        "sampling weights that the service overwrites. Rollouts are the same where nothing is sampled meanwhile. Where "
        "rounds are played ahead, `inflight` needs `rllm.async_training.partial_rollout`, and tokens count as of the "
        "oldest version they may be of.",
    )


class TinkerConfig(Section):
    """Everything that only the tinker backend reads."""

    tinker_base_url: str | None = Field(
        None, description="URL of the service; null: the client's own default; `local`: start a server on this machine."
    )
    tinker_connect_timeout: float = Field(
        30.0, gt=0, description="Seconds until a server that does not answer, or stopped answering, ends the run."
    )
    tinker_timeout: float = Field(
        3600.0, gt=0, description="Longest wait in seconds for one result of a server that does answer."
    )
    fuse_forward_backward_and_optim_step: bool = Field(
        False, description="Ask for gradient and optimiser step at once: one wait less, no look at the loss in between."
    )
    model: ModelSection = Field(default_factory=ModelSection, description="The model to train.")
    training: TrainingSection = Field(default_factory=TrainingSection, description="The optimiser and its batches.")
    validation: ValidationSection = Field(default_factory=ValidationSection, description="Validation.")
    rollout_engine: RolloutEngineSection = Field(
        default_factory=RolloutEngineSection, description="How rollouts are sampled."
    )
