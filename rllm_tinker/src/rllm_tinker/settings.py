"""The `tinker` backend's own config keys. Keys that rLLM also has keep rLLM's names and defaults."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
LOCAL = "local"
DEFAULT_MODEL = "Qwen/Qwen3-8B"
DEFAULT_LOCAL_DIR = "/tmp/rllm-tinker-checkpoints"


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class ModelSection(Section):
    name: str = DEFAULT_MODEL
    """Base model, by the service's name for it. With `tinker_base_url=local`: a directory, a hub id or `tiny` (the
    default there)."""
    tokenizer: str | None = None
    """Tokenizer and chat template: a directory, a hub id or `tiny`. Null: use those from `model.name`."""
    lora_rank: PositiveInt = 32
    """LoRA rank."""
    train_unembed: bool = True
    """Train LoRA on the output embedding layer."""
    train_attn: bool = True
    """Train LoRA on attention layers."""
    train_mlp: bool = True
    """Train LoRA on MLP layers."""


class TrainingSection(Section):
    group_size: PositiveInt = 8
    """Rollouts per prompt. The same as `rllm.rollout.n`."""
    learning_rate: float = Field(2e-5, gt=0)
    """AdamW learning rate after warm-up."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate changes after warm-up. `linear` and `cosine` decay it to 0."""
    warmup_steps_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Fraction of the run in which the learning rate rises from 0."""
    beta1: Fraction = 0.9
    """AdamW beta1."""
    beta2: Fraction = 0.95
    """AdamW beta2."""
    eps: float = Field(1e-8, gt=0)
    """AdamW epsilon."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW weight decay of the LoRA weights."""
    max_grad_norm: float = Field(0.0, ge=0)
    """Maximum gradient norm for clipping. 0: no clipping."""
    max_length: PositiveInt = 32768
    """Maximum number of tokens in a conversation."""
    num_epochs: PositiveInt = 1
    """Passes over a step's batch."""
    num_minibatches: PositiveInt = 1
    """Optimizer steps per pass. Each uses an equal share of the rows."""
    default_local_dir: str = DEFAULT_LOCAL_DIR
    """Directory in which the server of `tinker_base_url=local` stores checkpoints."""
    resume_from_tinker_id: str | None = None
    """Start from these weights and their optimizer state: a path `tinker://RUN/weights/NAME`, or the id of a training
    run to use its newest checkpoint."""


class ValidationSection(Section):
    group_size: PositiveInt = 1
    """Rollouts per prompt in validation. The same as `rllm.rollout.n_val`."""


class RolloutEngineSection(Section):
    reasoning_effort: str = "medium"
    """Reasoning effort for chat templates that have this option."""
    accumulate_reasoning: bool = False
    """The same as `rllm.accumulate_reasoning`."""
    disable_thinking: bool = False
    """The same as `rllm.disable_thinking`."""
    renderer_name: str | None = None
    """Must be null, because the tokenizer's chat template renders the messages."""
    weights: Literal["snapshot", "inflight"] = "snapshot"
    """How weights are synced. `snapshot`: each step saves new sampling weights. `inflight`: the service overwrites one
    set of sampling weights. Results are identical as long as no sampling runs during the overwrite. For asynchronous
    training with `inflight`, set `rllm.async_training.partial_rollout`. rllm then assumes the oldest possible version
    for each token."""


class TinkerConfig(Section):
    """The config that only the tinker backend reads."""

    tinker_base_url: str | None = None
    """URL of the service. Null: use the client's default. `local`: start a server on this machine."""
    tinker_connect_timeout: float = Field(30.0, gt=0)
    """Time limit in seconds for a server that does not answer. The run fails after that."""
    tinker_timeout: float = Field(3600.0, gt=0)
    """Time limit in seconds for one result, if the server answers."""
    fuse_forward_backward_and_optim_step: bool = False
    """Request the gradient and the optimizer step together. This saves one wait, but rllm cannot check the loss before
    the step."""
    model: ModelSection = Field(default_factory=ModelSection)
    """The model to train."""
    training: TrainingSection = Field(default_factory=TrainingSection)
    """The optimizer and its batches."""
    validation: ValidationSection = Field(default_factory=ValidationSection)
    """Validation."""
    rollout_engine: RolloutEngineSection = Field(default_factory=RolloutEngineSection)
    """How rollouts are sampled."""
