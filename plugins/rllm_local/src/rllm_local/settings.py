"""The `local` backend's own config sections: ``model``, ``training`` and ``local``."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

DEVICE = r"auto|(cpu|cuda|mps|xpu)(:\d+)?"
"""Names of devices that torch computes on; whether one is there is found when a model is loaded."""
PositiveInt = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelSection(Section):
    name: str = Field("tiny", description="`tiny`, a Hugging Face folder or hub id, or a checkpoint of a run.")
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="Type of weights and activations.")
    device: str = Field("auto", description="`cpu`, `cuda`, `cuda:1`, …; auto means cuda where there is one.")

    @field_validator("device")
    @classmethod
    def _known(cls, name: str) -> str:
        if re.fullmatch(DEVICE, name) is None:
            raise ValueError("expected auto, cpu, cuda, cuda:1, or another device of torch")
        return name


class TrainedModelSection(ModelSection):
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Type that the model computes in, for training and sampling. The optimiser moves float32 weights.",
    )

    lora_rank: int = Field(0, ge=0, description="LoRA rank; 0 trains all weights. Needs `rllm-local[lora]`.")
    lora_alpha: float = Field(
        32, gt=0, description="LoRA scaling times rank: what is added to a layer is lora_alpha / lora_rank · B A x."
    )
    lora_target_modules: Literal["all-linear"] | tuple[str, ...] = Field(
        "all-linear",
        description="Linear layers with an adapter, by the ends of their names, such as `[q_proj, v_proj]`; "
        "`all-linear`: all but the output layer.",
    )

    def adapts(self, layer: str) -> bool:
        """Return True if `lora_target_modules` contains this linear layer, or stands for all layers."""
        targets = self.lora_target_modules
        return isinstance(targets, str) or any(f".{layer}".endswith(f".{target}") for target in targets)

    @field_validator("dtype", mode="before")
    @classmethod
    def _not_float16(cls, value: object) -> object:
        if value == "float16":
            raise ValueError(
                "float16 is not supported: gradients leave its range, and losses are not scaled; "
                "use bfloat16 or float32"
            )
        return value


class TrainingSection(Section):
    learning_rate: float = Field(2e-5, gt=0, description="AdamW learning rate after warm-up.")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="How the learning rate falls to 0 over the run."
    )
    warmup_steps_ratio: float = Field(0.0, ge=0, le=1, description="Share of the run in which the learning rate rises.")
    beta1: Fraction = Field(0.9, description="AdamW beta1.")
    beta2: Fraction = Field(0.95, description="AdamW beta2.")
    eps: float = Field(1e-8, gt=0, description="AdamW epsilon.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay of the model.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are scaled down to this norm.")
    num_epochs: PositiveInt = Field(1, description="Passes over a step's batch.")
    num_minibatches: PositiveInt = Field(1, description="Optimiser steps per pass, each on its share of the rows.")
    max_length: PositiveInt = Field(32768, description="Most tokens of a conversation; the model may allow fewer.")
    max_tokens_per_microbatch: PositiveInt | None = Field(
        None,
        description="Padded tokens per forward and backward pass; lower it when memory runs out. Null: 2,048 on a CPU, "
        "where larger passes are slower, and 16,384 elsewhere.",
    )
    gradient_checkpointing: bool = Field(
        False,
        description="Compute activations again in the backward pass: updates take about a third longer, and much less "
        "memory per token.",
    )

    def tokens_per_microbatch(self, device: str) -> int:
        """`max_tokens_per_microbatch` on a type of device, such as ``cpu``."""
        return self.max_tokens_per_microbatch or (2048 if device == "cpu" else 16384)


class CriticSection(Section):
    """A value head on the model, for estimators such as `gae`."""

    learning_rate: float = Field(
        0.05,
        gt=0,
        description="AdamW learning rate of the value head, about how far a value moves in one optimiser step; it "
        "follows the schedule of `training`.",
    )
    value_loss_coeff: float = Field(
        0.5, gt=0, description="Weight of the value loss in the gradient of the model that head and policy share."
    )
    clip: float | None = Field(
        None, gt=0, description="How far a value may move from the old one before its loss is clipped; null: any far."
    )


class LocalSection(Section):
    torch_threads: PositiveInt = Field(1, description="CPU threads of torch; more than one rarely helps small models.")
    max_concurrency: PositiveInt = Field(512, description="Conversations sampled in one forward pass at most.")
    kv_cache_gib: float = Field(2.0, gt=0, description="Memory for cached keys and values, in GiB.")
    batch_invariant: bool = Field(
        False,
        description="Make log-probs independent of the rows that share a pass, bit for bit, on a CPU. It costs CPU "
        "time. Asynchronous runs with fixed-version weights always do so.",
    )
    training_process: bool = Field(
        True,
        description="Train in a separate process in asynchronous runs; false: in the process that samples, in turns "
        "with it.",
    )


class LocalConfig(Section):
    """Everything that only the local backend reads."""

    model: TrainedModelSection = Field(default_factory=TrainedModelSection, description="The model to train.")
    training: TrainingSection = Field(default_factory=TrainingSection, description="The optimiser and its batches.")
    critic: CriticSection = Field(
        default_factory=CriticSection, description="The value head; there is one where an estimator needs `values`."
    )
    local: LocalSection = Field(default_factory=LocalSection, description="This machine.")
