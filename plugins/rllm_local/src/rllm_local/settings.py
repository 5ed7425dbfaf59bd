"""The `local` backend's own config sections: ``model``, ``training`` and ``local``."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

DEVICE = r"auto|(cpu|cuda|mps|xpu)(:\d+)?"
"""Pattern for the names of torch's devices. The model loader checks whether the device exists."""
TORCH_BACKENDS = "torch.backends"
"""Group of the entry points with which packages add devices to torch."""
PositiveInt = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class ModelSection(Section):
    name: str = "tiny"
    """`tiny`, a Hugging Face directory or hub id, or a checkpoint of a run."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of weights and activations."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, … `auto`: use cuda if available, else cpu."""

    @field_validator("device")
    @classmethod
    def _check_device(cls, name: str) -> str:
        if re.fullmatch(DEVICE, name) is None and not entry_points(group=TORCH_BACKENDS):
            raise ValueError("expected auto, cpu, cuda, cuda:1, or another device of torch")
        return name


class TrainedModelSection(ModelSection):
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which the model computes, for training and sampling. The optimizer always updates float32 weights."""

    lora_rank: int = Field(0, ge=0)
    """LoRA rank. 0 trains all weights. Needs `rllm-local[lora]`."""
    lora_alpha: float = Field(32, gt=0)
    """LoRA scaling times rank. A layer's output gets lora_alpha / lora_rank · B A x added."""
    lora_target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Linear layers that get an adapter, by the ends of their names, for example `[q_proj, v_proj]`. `all-linear`: all
    except the output layer."""

    def adapts(self, layer: str) -> bool:
        """Return True if `lora_target_modules` contains this linear layer or selects all layers."""
        targets = self.lora_target_modules
        return isinstance(targets, str) or any(f".{layer}".endswith(f".{target}") for target in targets)

    @field_validator("dtype", mode="before")
    @classmethod
    def _reject_float16(cls, value: object) -> object:
        if value == "float16":
            raise ValueError(
                "float16 is not supported, because gradients leave its range and losses are not scaled; "
                "use bfloat16 or float32"
            )
        return value


class TrainingSection(Section):
    learning_rate: float = Field(2e-5, gt=0)
    """AdamW learning rate after warm-up."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate changes after warm-up. `linear` and `cosine` decay it to 0."""
    warmup_steps_ratio: float = Field(0.0, ge=0, le=1)
    """Fraction of the run in which the learning rate rises from 0."""
    beta1: Fraction = 0.9
    """AdamW beta1."""
    beta2: Fraction = 0.95
    """AdamW beta2."""
    eps: float = Field(1e-8, gt=0)
    """AdamW epsilon."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW weight decay of the model."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Maximum gradient norm for clipping."""
    num_epochs: PositiveInt = 1
    """Passes over a step's batch."""
    num_minibatches: PositiveInt = 1
    """Optimizer steps per pass. Each uses an equal share of the rows."""
    max_length: PositiveInt = 32768
    """Maximum number of tokens in a conversation. The model may allow fewer."""
    max_tokens_per_microbatch: PositiveInt | None = None
    """Maximum number of tokens in a forward and backward pass. Lower it if memory runs out. Null: 2,048 on a CPU,
    16,384 on other devices. A pass over rows with different beginnings ends at about 512 tokens on a CPU, because
    larger passes were no faster there, and at 8,192 on other devices (not measured). A row longer than the maximum
    shares its pass with rows that have the same beginning, up to 1.5 times its tokens."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass. Updates take about a third longer, but need much less memory per
    token."""

    def tokens_per_microbatch(self, device: str) -> int:
        """Return `max_tokens_per_microbatch`, or its default for a device type such as ``cpu``."""
        return self.max_tokens_per_microbatch or (2048 if device == "cpu" else 16384)


class CriticSection(Section):
    """A value head on the model, for estimators such as `gae`."""

    learning_rate: float = Field(0.05, gt=0)
    """AdamW learning rate of the value head: about how far a value moves in one optimizer step. It follows the schedule
    of `training`."""
    value_loss_coeff: float = Field(0.5, gt=0)
    """Weight of the value loss in the gradient of the shared model (policy and value head)."""
    clip: float | None = Field(None, gt=0)
    """Maximum distance from the old value before the value loss is clipped. Null: no clipping."""


class LocalSection(Section):
    torch_threads: PositiveInt = 1
    """CPU threads of torch. More threads rarely help small models."""
    max_concurrency: PositiveInt = 512
    """Maximum number of conversations in one forward pass."""
    kv_cache_gib: float = Field(2.0, gt=0)
    """Memory for cached keys and values, in GiB."""
    training_process: bool = True
    """Train in a separate process in asynchronous runs. False: one process alternates between sampling and training."""


class LocalConfig(Section):
    """The config that only the local backend reads."""

    model: TrainedModelSection = Field(default_factory=TrainedModelSection)
    """The model to train."""
    training: TrainingSection = Field(default_factory=TrainingSection)
    """The optimizer and its batches."""
    critic: CriticSection = Field(default_factory=CriticSection)
    """The value head. It exists only if the estimator needs `values`."""
    local: LocalSection = Field(default_factory=LocalSection)
    """This machine."""
