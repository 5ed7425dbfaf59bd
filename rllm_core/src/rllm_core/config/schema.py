"""Every config key of the core: name, type, default and meaning. Unknown keys are errors.

A backend adds its own top-level sections (``model``, ``training``, …) with a model of its own.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Choice = str | dict[str, Any]
"""A plugin by name: ``rloo``, ``rllm-core/rloo``, or ``{name: grpo, norm_adv_by_std_in_grpo: false}``."""

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values never change after start."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class AgentSection(Section):
    max_steps: PositiveInt = Field(20, description="Most turns of an attempt.")
    trajectory_timeout: float | None = Field(
        None, gt=0, description="Seconds an attempt may take before it ends with reason `timeout`; null means no limit."
    )


class EnvSection(Section):
    name: str = Field("", description="Environment to play, by name; `rllm train NAME` sets it.")
    env_args: dict[str, Any] = Field(default_factory=dict, description="Options of the environment.")


class WorkflowSection(Section):
    name: str = Field("single_turn_workflow", description="Workflow that makes an attempt at a task, by name.")
    workflow_args: dict[str, Any] = Field(default_factory=dict, description="Options of the workflow.")
    n_parallel_tasks: PositiveInt = Field(256, description="Attempts under way at once.")
    retry_limit: PositiveInt = Field(3, description="Tries per attempt, the first included, before it has failed.")
    raise_on_error: bool = Field(
        True, description="Stop the run when an attempt failed on every try; else it ends with reason `error`."
    )


class RolloutSection(Section):
    n: PositiveInt = Field(8, description="Rollouts per task during training.")
    n_val: PositiveInt = Field(1, description="Rollouts per task during validation.")


def _console() -> list[Choice]:
    return ["console"]


class TrainerSection(Section):
    total_epochs: PositiveInt = Field(10, description="Passes over the training tasks.")
    total_batches: PositiveInt | Literal[-1] = Field(
        -1, description="Training steps; -1 means as many as `total_epochs` gives."
    )
    logger: list[Choice] = Field(default_factory=_console, description="Trackers that receive metrics.")
    observers: list[Choice] = Field(default_factory=list, description="Observers that watch the training loop.")
    project_name: str = Field("rllm-training", pattern=r"^[\w-][\w.-]*$", description="Folder of the project's runs.")
    experiment_name: str = Field("default", pattern=r"^[\w-][\w.-]*$", description="Folder of this run in its project.")
    output_dir: str = Field("runs", description="Folder that holds all projects.")
    test_freq: int = Field(5, ge=-1, description="Training steps between validations; 0 or -1 means never.")
    save_freq: int = Field(20, ge=-1, description="Training steps between checkpoints; 0 or -1 means only at the end.")
    keep_checkpoints: int = Field(3, ge=2, description="Newest checkpoints kept; two at least, so one can go bad.")
    val_before_train: bool = Field(True, description="Validate before the first step.")
    val_only: bool = Field(False, description="Validate and stop.")
    seed: NonNegativeInt = Field(0, description="Every random draw of a run is a function of this seed.")


class EntropySection(Section):
    coeff: float = Field(0.0, ge=0, description="Weight of the entropy bonus at the first step.")
    final_coeff: float = Field(0.0, ge=0, description="Its weight from step `decay_steps` on.")
    decay_steps: NonNegativeInt = Field(0, description="Steps of the linear fall from `coeff`; 0 keeps `coeff`.")


class AlgorithmSection(Section):
    adv_estimator: Choice = Field("grpo", description="Advantage estimator, by name.")
    estimator_map: dict[str, Choice] = Field(default_factory=dict, description="Other estimators, by group role.")
    norm_adv_by_std_in_grpo: bool = Field(True, description="Whether `grpo` divides by the group's standard deviation.")
    loss_fn: Choice | None = Field(None, description="Policy loss, by name; null means the estimator's default.")
    loss_map: dict[str, Choice] = Field(default_factory=dict, description="Other losses, by group role.")
    loss_agg_mode: Literal[
        "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
    ] = Field("token-mean", description="How token losses become one number.")
    eps_clip: float = Field(0.2, gt=0, description="Importance ratios below 1 - eps_clip are clipped.")
    eps_clip_high: float | None = Field(None, gt=0, description="Upper bound 1 + eps_clip_high; null means eps_clip.")
    entropy: EntropySection = Field(default_factory=EntropySection, description="Entropy bonus and its schedule.")
    on_missing_reward: Literal["error", "drop", "zero"] = Field(
        "error", description="What to do with a missing, NaN or infinite reward; always counted in metrics."
    )


class CompactFilteringSection(Section):
    """Which ways of ending take an attempt out of the gradient."""

    enable: bool = Field(False, description="Whether to mask attempts by how they ended.")
    mask_max_prompt_length_exceeded: bool = Field(True, description="Mask attempts whose prompt grew too long.")
    mask_max_response_length_exceeded: bool = Field(True, description="Mask attempts whose answer was cut off.")
    mask_env_done: bool = Field(False, description="Mask attempts that the environment ended.")
    mask_max_turns_exceeded: bool = Field(True, description="Mask attempts that ran out of turns.")
    mask_timeout: bool = Field(True, description="Mask attempts that ran out of time.")
    mask_unknown: bool = Field(False, description="Mask attempts that do not say how they ended.")
    mask_error: bool = Field(True, description="Mask attempts that failed.")


class TransformSection(Section):
    grouping: Choice = Field("task_role", description="How trajectories are grouped, by name.")


class RejectionSection(Section):
    enable: bool = Field(False, description="Whether to use `mode` and `multiplier`; when false, mode is `none`.")
    mode: Choice = Field("group", description="Rejection mode, by name.")
    multiplier: PositiveInt = Field(1, description="How many times `data.train_batch_size` tasks a step draws.")
    min_partial_solve_tasks: PositiveInt = Field(
        1, description="Mode `episode`: partly solved tasks to gather before an update."
    )
    min_trajs_per_group: PositiveInt = Field(2, description="Mode `group`: smaller groups are dropped.")


class PipelineSection(Section):
    stages: list[Choice] | None = Field(None, description="The whole pipeline, by stage name; null means the built-in.")
    insert: list[dict[str, Any]] = Field(
        default_factory=list, description="Stages to add: `{stage: NAME, after: NAME}`, or with `before`."
    )
    remove: list[str] = Field(default_factory=list, description="Stages to leave out.")
    replace: dict[str, Choice] = Field(default_factory=dict, description="Stages to exchange: old name to new.")


class EpisodeLoggingSection(Section):
    log_episodes: bool = Field(False, description="Keep every training episode under `episodes/` in the run folder.")


class PluginsSection(Section):
    allow: list[str] | None = Field(None, description="Distributions whose plugins may load; null means all.")


class RllmSection(Section):
    backend: str = Field("local", description="Backend, by name.")
    agent: AgentSection = Field(default_factory=AgentSection, description="Limits of one attempt.")
    env: EnvSection = Field(default_factory=EnvSection, description="What is played.")
    workflow: WorkflowSection = Field(default_factory=WorkflowSection, description="How an attempt is made.")
    rollout: RolloutSection = Field(default_factory=RolloutSection, description="How many attempts are made.")
    trainer: TrainerSection = Field(default_factory=TrainerSection, description="The training loop.")
    algorithm: AlgorithmSection = Field(default_factory=AlgorithmSection, description="From rewards to gradients.")
    compact_filtering: CompactFilteringSection = Field(
        default_factory=CompactFilteringSection, description="Attempts masked by how they ended."
    )
    transform: TransformSection = Field(default_factory=TransformSection, description="From episodes to groups.")
    rejection_sample: RejectionSection = Field(default_factory=RejectionSection, description="Groups not trained on.")
    pipeline: PipelineSection = Field(default_factory=PipelineSection, description="The stages of a training step.")
    episode_logging: EpisodeLoggingSection = Field(
        default_factory=EpisodeLoggingSection, description="Episodes kept on disk."
    )
    plugins: PluginsSection = Field(default_factory=PluginsSection, description="Which plugins may load.")


class SamplingPhaseSection(Section):
    temperature: float = Field(1.0, ge=0, description="Sampling temperature; 0 is greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling threshold.")
    top_k: int = Field(-1, ge=-1, description="Sample among the k likeliest tokens; -1 means all.")


class SamplingSection(Section):
    train: SamplingPhaseSection = Field(default_factory=SamplingPhaseSection, description="Sampling in training.")
    val: SamplingPhaseSection = Field(default_factory=SamplingPhaseSection, description="Sampling in validation.")


class DataSection(Section):
    train_batch_size: PositiveInt = Field(64, description="Tasks per training step; never more than there are.")
    val_batch_size: PositiveInt = Field(32, description="Tasks per validation batch.")
    max_prompt_length: PositiveInt = Field(2048, description="Most tokens a model call may start from.")
    max_response_length: PositiveInt = Field(2048, description="Most tokens one model call may sample.")


class RunConfig(Section):
    """The core's part of a config."""

    rllm: RllmSection = Field(default_factory=RllmSection, description="Backend-agnostic settings.")
    data: DataSection = Field(default_factory=DataSection, description="Batches and lengths.")
    sampling: SamplingSection = Field(default_factory=SamplingSection, description="How tokens are drawn.")
