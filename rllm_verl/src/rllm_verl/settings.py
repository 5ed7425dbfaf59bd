"""The `verl` backend's config: verl's own sections as verl ships them, and two of ours."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from rllm_core.schema.section import AsPackaged

Mapping = dict[str, Any]
Seconds = Annotated[float, Field(gt=0)]
MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
FREE = frozenset(
    {
        f"{MODEL}.override_config",
        f"{MODEL}.lora",
        f"{ROLLOUT}.engine_kwargs",
        f"{ROLLOUT}.checkpoint_engine.engine_kwargs",
        "actor_rollout_ref.actor.megatron",
        "actor_rollout_ref.ref.megatron",
        "actor_rollout_ref.actor.veomni",
        "actor_rollout_ref.ref.veomni",
        "ray_kwargs.ray_init",
    }
)
"""Mappings that verl hands on to other libraries, whose options it does not list."""
OPTIONAL = frozenset(
    {
        "actor_rollout_ref.actor.fsdp_config.mixed_precision",
        "actor_rollout_ref.ref.fsdp_config.mixed_precision",
        f"{MODEL}.target_parameters",
        f"{ROLLOUT}.enable_sleep_mode",
        f"{ROLLOUT}.repetition_penalty",
    }
)
"""Keys of verl's classes that its YAML leaves out, and that act. The others are overwritten by verl's own workers, or
belong to what is not used here."""
OF_VERL = AsPackaged(FREE, OPTIONAL)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TrainingSection(Section):
    num_minibatches: Annotated[int, Field(gt=0)] = Field(
        1, description="Optimiser steps per pass over a step's batch, each on its share of the rows."
    )


class DeadlinesSection(Section):
    """Seconds after which a wait ends the run."""

    start: Seconds = Field(600.0, description="For Ray, the workers with their model, and the rollout servers.")
    rollout: Seconds = Field(600.0, description="For the answer to one request of a rollout.")
    update: Seconds = Field(1800.0, description="For the log-probs of a batch, and for its update.")
    sync_weights: Seconds = Field(600.0, description="For new weights to reach the rollout servers.")
    checkpoint: Seconds = Field(1800.0, description="For a checkpoint to be written or read.")
    close: Seconds = Field(60.0, description="For everything to end.")


class DataExtras(BaseModel):
    """What verl has in its section `data` beside the core's keys."""

    model_config = ConfigDict(extra="allow", frozen=True)


class VerlConfig(Section):
    """Everything that only the verl backend reads. Keys of verl's own sections are those of the installed verl."""

    training: TrainingSection = Field(default_factory=TrainingSection, description="How a batch is dealt.")
    deadlines: DeadlinesSection = Field(
        default_factory=DeadlinesSection, description="Seconds after which a wait ends the run."
    )
    actor_rollout_ref: Annotated[Mapping, OF_VERL] = Field(
        default_factory=dict,
        description="verl: the model, its training workers, reference and rollout servers. Asynchronous training needs "
        "rollout.nnodes above 0.",
    )
    trainer: Annotated[Mapping, OF_VERL] = Field(default_factory=dict, description="verl: nodes, GPUs and device.")
    ray_kwargs: Annotated[Mapping, OF_VERL] = Field(default_factory=dict, description="verl: arguments of `ray.init`.")
    algorithm: Annotated[Mapping, OF_VERL] = Field(
        default_factory=dict, description="verl: other names of keys in `rllm.algorithm`."
    )
    data: Annotated[DataExtras, OF_VERL] = Field(
        default_factory=DataExtras, description="verl: its reading of prompts from files."
    )
    model_engine: str = Field("dp", description="verl: which of its files are composed.")
    critic: Annotated[Mapping, OF_VERL] = Field(default_factory=dict, description="verl: not used.")
    reward: Annotated[Mapping, OF_VERL] = Field(default_factory=dict, description="verl: not used.")
    reward_model: Annotated[Mapping, OF_VERL] = Field(default_factory=dict, description="verl: not used.")
    custom_reward_function: Annotated[Mapping, OF_VERL] = Field(default_factory=dict, description="verl: not used.")
    sandbox_fusion: Annotated[Mapping, OF_VERL] = Field(default_factory=dict, description="verl: not used.")
    distillation: Annotated[Mapping, OF_VERL] = Field(default_factory=dict, description="verl: not used.")
    transfer_queue: Annotated[Mapping, OF_VERL] = Field(default_factory=dict, description="verl: not used.")
    global_profiler: Annotated[Mapping, OF_VERL] = Field(default_factory=dict, description="verl: not used.")
    skip: Annotated[Mapping, OF_VERL] = Field(default_factory=dict, description="verl: not used.")

    def native(self) -> dict[str, Any]:
        """A copy of verl's own sections, as verl's classes take them; of `data` what the core lacks."""
        return self.model_dump(exclude={"training", "deadlines"})
