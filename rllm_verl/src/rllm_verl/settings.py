"""The `verl` backend's config: verl's own sections with its defaults, and the sections `training` and `deadlines`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from rllm_core.schema.section import ExternalSection
from rllm_verl.keys import ACTOR, MODEL, REF, ROLLOUT

Mapping = dict[str, Any]
Seconds = Annotated[float, Field(gt=0)]
FREE = frozenset(
    {
        f"{MODEL}.override_config",
        f"{MODEL}.lora",
        f"{ROLLOUT}.engine_kwargs",
        f"{ROLLOUT}.checkpoint_engine.engine_kwargs",
        f"{ACTOR}.megatron",
        f"{REF}.megatron",
        f"{ACTOR}.veomni",
        f"{REF}.veomni",
        "ray_kwargs.ray_init",
    }
)
"""Mappings that verl passes to other libraries. verl does not list their options, so any key is accepted."""
OPTIONAL = frozenset(
    {
        f"{ACTOR}.fsdp_config.mixed_precision",
        f"{REF}.fsdp_config.mixed_precision",
        f"{MODEL}.target_parameters",
        f"{ROLLOUT}.enable_sleep_mode",
        f"{ROLLOUT}.repetition_penalty",
    }
)
"""Keys of verl's classes that its YAML does not list but its code reads. verl's workers overwrite the other unlisted
keys, or this backend does not use their part of verl."""
OF_VERL = ExternalSection(FREE, OPTIONAL)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class TrainingSection(Section):
    num_minibatches: Annotated[int, Field(gt=0)] = 1
    """Optimizer steps per pass over a step's batch. Each uses an equal share of the rows."""


class DeadlinesSection(Section):
    """Time limits in seconds. The run fails when a wait exceeds its limit."""

    start: Seconds = 600.0
    """Time limit to start Ray, to load the model in the workers, and to start the rollout servers."""
    rollout: Seconds = 600.0
    """Time limit for the response to one request of a rollout."""
    update: Seconds = 1800.0
    """Time limit for a batch's log-probs, and for its update."""
    sync_weights: Seconds = 600.0
    """Time limit to send new weights to the rollout servers."""
    checkpoint: Seconds = 1800.0
    """Time limit to write or read a checkpoint."""
    close: Seconds = 60.0
    """Time limit to stop all processes at the end."""


class DataExtras(BaseModel):
    """The keys of verl's section `data` that the core does not define."""

    model_config = ConfigDict(extra="allow", frozen=True)


class VerlConfig(Section):
    """The config that only the verl backend reads. The installed verl defines the keys in its sections."""

    training: TrainingSection = Field(default_factory=TrainingSection)
    """How a batch is split into optimizer steps."""
    deadlines: DeadlinesSection = Field(default_factory=DeadlinesSection)
    """Time limits in seconds. The run fails when it exceeds one."""
    actor_rollout_ref: Annotated[Mapping, OF_VERL] = Field(default_factory=dict)
    """verl: the model, its training workers, its reference and the rollout servers. For asynchronous training, set
    rollout.nnodes above 0."""
    trainer: Annotated[Mapping, OF_VERL] = Field(default_factory=dict)
    """verl: nodes, GPUs and device."""
    ray_kwargs: Annotated[Mapping, OF_VERL] = Field(default_factory=dict)
    """verl: arguments of `ray.init`."""
    algorithm: Annotated[Mapping, OF_VERL] = Field(default_factory=dict)
    """verl: its names for the keys of `rllm.algorithm`."""
    data: Annotated[DataExtras, OF_VERL] = Field(default_factory=DataExtras)
    """verl: how it reads prompts from files."""
    model_engine: str = "dp"
    """verl: the training engine, which selects verl's config files."""
    critic: Annotated[Mapping, OF_VERL] = Field(default_factory=dict)
    """verl: not used."""
    reward: Annotated[Mapping, OF_VERL] = Field(default_factory=dict)
    """verl: not used."""
    reward_model: Annotated[Mapping, OF_VERL] = Field(default_factory=dict)
    """verl: not used."""
    custom_reward_function: Annotated[Mapping, OF_VERL] = Field(default_factory=dict)
    """verl: not used."""
    sandbox_fusion: Annotated[Mapping, OF_VERL] = Field(default_factory=dict)
    """verl: not used."""
    distillation: Annotated[Mapping, OF_VERL] = Field(default_factory=dict)
    """verl: not used."""
    transfer_queue: Annotated[Mapping, OF_VERL] = Field(default_factory=dict)
    """verl: not used."""
    global_profiler: Annotated[Mapping, OF_VERL] = Field(default_factory=dict)
    """verl: not used."""
    skip: Annotated[Mapping, OF_VERL] = Field(default_factory=dict)
    """verl: not used."""

    def native(self) -> dict[str, Any]:
        """Return a copy of verl's own sections for verl's classes. `data` has only the keys that the core lacks."""
        return self.model_dump(exclude={"training", "deadlines"})
