"""Sections about attempts and the training loop: agent, env, workflow, rollout, trainer and what a run keeps."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rllm_core.schema.section import (
    PLAYING,
    TRAINING,
    Choice,
    Names,
    NoEffect,
    NonNegativeInt,
    PositiveInt,
    ReadBy,
    Rejected,
    Section,
)

NO_ENVIRONMENT = "custom"
"""Value of ``rllm.env.name`` when none is chosen by name: the workflow brings its own world."""

WHILE_COUNTED_IN_BATCHES = NoEffect(
    lambda trainer: trainer.total_batches > 0,
    ": rllm.trainer.total_batches is {total_batches}",
    "Set one of the two.",
)
WHILE_TAKING_TURNS = NoEffect(
    lambda section: section.enable and not section.staleness_threshold,
    ": staleness_threshold is 0, so that rollouts and updates take turns",
    "Set staleness_threshold to 1 or more, or leave it out.",
)


class AgentSection(Section):
    """Who plays: from what the environment says to chat messages, and from the model's words to an action."""

    name: Annotated[str, ReadBy(), Names("agent")] = Field("math_agent", description="Agent, by name.")
    max_steps: Annotated[PositiveInt, ReadBy()] = Field(20, description="Most turns of an attempt.")
    trajectory_timeout: float | None = Field(
        None, gt=0, description="Seconds an attempt may take before it ends with reason `timeout`; null means no limit."
    )
    overlong_filter: Annotated[bool, ReadBy()] = Field(
        False, description="Mask attempts that ran out of room, turns or time, besides what `compact_filtering` masks."
    )
    agent_args: Annotated[dict[str, Any], ReadBy()] = Field(default_factory=dict, description="Options of the agent.")
    engine_args: Annotated[dict[str, Any], ReadBy()] = Field(
        default_factory=dict, description="Options of the backend's rollout engine, for backends that take any here."
    )


class EnvSection(Section):
    """What is played."""

    name: Annotated[str, Names("environment")] = Field(
        NO_ENVIRONMENT,
        description="Environment to play, by name; `rllm train NAME` sets it. `custom` means none: the workflow brings "
        "its own world and tasks come from `data.train_dataset` or from Python.",
    )
    env_args: dict[str, Any] = Field(default_factory=dict, description="Options of the environment.")


class WorkflowSection(Section):
    """How an attempt is made."""

    use_workflow: Annotated[
        bool, Rejected("Rollouts are always made by the workflow `rllm.workflow.name`. Remove the key.", accepted=True)
    ] = Field(False, description="Accepted for configurations of rLLM; the agent loop is a workflow itself here.")
    name: Annotated[str, Names("workflow")] = Field(
        "single_turn_workflow", description="Workflow that makes an attempt at a task, by name."
    )
    workflow_args: dict[str, Any] = Field(default_factory=dict, description="Options of the workflow.")
    n_parallel_tasks: PositiveInt = Field(256, description="Attempts under way at once.")
    retry_limit: PositiveInt = Field(3, description="Tries per attempt, the first included, before it has failed.")
    raise_on_error: bool = Field(
        True, description="Stop the run when an attempt failed on every try; else it ends with reason `error`."
    )


class RolloutSection(Section):
    """How many attempts are made, and by which engine."""

    n: Annotated[PositiveInt, ReadBy(), TRAINING] = Field(8, description="Rollouts per task during training.")
    n_val: Annotated[PositiveInt, PLAYING] = Field(1, description="Rollouts per task during validation.")
    engine: Annotated[Choice | None, ReadBy(), Names("engine")] = Field(
        None, description="Rollout engine that the backend hosts, by name; null means the backend's own."
    )


def _console() -> list[Choice]:
    return ["console"]


class TrainerSection(Section):
    """The training loop."""

    total_epochs: Annotated[PositiveInt, WHILE_COUNTED_IN_BATCHES, TRAINING] = Field(
        10, description="Passes over the training tasks."
    )
    total_batches: Annotated[PositiveInt | Literal[-1], TRAINING] = Field(
        -1, description="Training steps; -1 means as many as `total_epochs` gives."
    )
    logger: Annotated[list[Choice], Names("tracker")] = Field(
        default_factory=_console, description="Trackers that receive metrics, by name."
    )
    observers: Annotated[list[Choice], Names("observer")] = Field(
        default_factory=list, description="Observers that watch the training loop."
    )
    project_name: str = Field("rllm-training", pattern=r"^[\w-][\w.-]*$", description="Folder of the project's runs.")
    experiment_name: str = Field("default", pattern=r"^[\w-][\w.-]*$", description="Folder of this run in its project.")
    output_dir: str = Field("runs", min_length=1, description="Folder that holds all projects.")
    test_freq: Annotated[int, TRAINING] = Field(
        5, ge=-1, description="Training steps between validations; 0 or -1 means never."
    )
    save_freq: Annotated[int, TRAINING] = Field(
        20, ge=-1, description="Training steps between checkpoints; 0 or -1 means only at the end."
    )
    keep_checkpoints: Annotated[int, TRAINING] = Field(
        3, ge=2, description="Newest checkpoints kept; two at least, so one can go bad."
    )
    val_before_train: Annotated[bool, TRAINING] = Field(True, description="Validate before the first step.")
    val_only: bool = Field(False, description="Validate and stop.")
    on_changed_source: Literal["error", "warn"] = Field(
        "error",
        description="What --resume does where a source of the run, such as the file of a reward function or of an "
        "agent, differs from that in the checkpoint: stop, or warn and go on. Holds for one start.",
    )
    seed: Annotated[NonNegativeInt, PLAYING] = Field(
        0, description="Every random draw of a run is a function of this seed."
    )


class AsyncTrainingSection(Section):
    """Rollouts that go on while weights are updated."""

    enable: Annotated[bool, TRAINING] = Field(
        False, description="Play the tasks of later steps while the weights are updated; needs `staleness_threshold`."
    )
    staleness_threshold: Annotated[float, TRAINING] = Field(
        0.0,
        ge=0,
        description="Most updates between the weights that sampled a token and those that train on it, a whole number. "
        "0: rollouts and updates take turns.",
    )
    partial_rollout: Annotated[bool, TRAINING, WHILE_TAKING_TURNS] = Field(
        False,
        description="false: all attempts of a step are sampled by one version of the weights, which is served until "
        "they end. true: they go on with new weights as soon as there are any, also within a reply.",
    )
    mini_batch_size: Annotated[
        PositiveInt, TRAINING, Rejected("A step trains on the groups of `data.train_batch_size` tasks; set that.")
    ] = Field(64, description="Accepted at its default, for configurations of rLLM.")
    fwd_bwd_group_size: Annotated[
        PositiveInt | None,
        TRAINING,
        Rejected("The backend divides a step into micro-batches by keys of its own; see its page."),
    ] = Field(None, description="Accepted at its default, for configurations of rLLM.")
    trigger_parameter_sync_step: Annotated[
        PositiveInt,
        TRAINING,
        Rejected(
            "Weights are synced after every update. For k optimiser steps between two syncs, set "
            "`data.train_batch_size` to k times as many tasks, and the backend's number of minibatches to k."
        ),
    ] = Field(1, description="Accepted at its default, for configurations of rLLM.")
    episode_offload_dir: Annotated[
        str | None,
        TRAINING,
        Rejected("Nothing waits in a queue; `rllm.episode_logging.log_episodes` keeps episodes on disk."),
    ] = Field(None, description="Accepted at its default, for configurations of rLLM.")
    trajectory_group_offload_dir: Annotated[
        str | None,
        TRAINING,
        Rejected("Nothing waits in a queue; `rllm.record` keeps what became of every trajectory on disk."),
    ] = Field(None, description="Accepted at its default, for configurations of rLLM.")

    @property
    def staleness(self) -> int:
        """Most updates between sampling and training; 0 where rollouts and updates take turns."""
        return int(self.staleness_threshold) if self.enable else 0

    @property
    def pins_weights(self) -> bool:
        """Whether a round that is played ahead is sampled whole by the weights that it began with."""
        return self.staleness > 0 and not self.partial_rollout


class EpisodeLoggingSection(Section):
    """Episodes kept on disk."""

    log_episodes: bool = Field(False, description="Keep every training episode.")
    episode_log_dir: str | None = Field(
        None, min_length=1, description="Folder for them; null means `episodes/` in the run folder."
    )


class PluginsSection(Section):
    """Which plugins there are."""

    allow: list[str] | None = Field(None, description="Distributions whose plugins may load; null means all.")
    import_modules: list[str] = Field(
        default_factory=list,
        description="Modules to import first, of the current folder or installed, such as one that registers an "
        "estimator.",
    )
