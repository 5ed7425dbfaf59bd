"""The config schema of the core: name, type, default and description of every key. Unknown keys are errors.

A backend adds its own top-level sections (``model``, ``training``, …). It may also add keys to ``data`` and
``sampling``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rllm_core.schema.algorithm_sections import (
    AlgorithmSection,
    CompactFilteringSection,
    PipelineSection,
    RejectionSection,
    StepwiseAdvantageSection,
    TransformSection,
)
from rllm_core.schema.run_sections import (
    AgentSection,
    AsyncTrainingSection,
    DataSection,
    EnvSection,
    EpisodeLoggingSection,
    PluginsSection,
    RolloutSection,
    SamplingSection,
    SdkSection,
    TrainerSection,
    WorkflowSection,
)
from rllm_core.schema.section import (
    ROLLOUT,
    TRAINING,
    Choice,
    Names,
    ReadBy,
    Rejected,
    Section,
    no_effect_without,
    section,
)

SWITCH = no_effect_without("enable=true")


class RllmSection(Section):
    """Settings that do not depend on the backend."""

    composed: list[dict[str, str]] | None = None
    """rllm writes this key into complete configs (`config.yaml`, `build_train_config`). It lists the settings that you
    made, with their source. When rllm reads such a file, it treats these settings, and values that were changed later,
    as set by you."""
    backend: Annotated[str, Names("backend"), ROLLOUT] = "local"
    """Name of the backend. You can also write rllm/backend=NAME."""
    profile: Annotated[str | None, ROLLOUT] = None
    """Name of a profile: predefined backend settings for one machine type, for example `cpu` for verl."""
    agent: Annotated[AgentSection, ROLLOUT] = section(AgentSection)
    env: Annotated[EnvSection, ROLLOUT] = section(EnvSection)
    workflow: Annotated[WorkflowSection, ROLLOUT] = section(WorkflowSection)
    rollout: RolloutSection = section(RolloutSection)
    trainer: TrainerSection = section(TrainerSection)
    algorithm: Annotated[AlgorithmSection, TRAINING] = section(AlgorithmSection)
    stepwise_advantage: Annotated[StepwiseAdvantageSection, TRAINING, SWITCH] = section(StepwiseAdvantageSection)
    reward: Annotated[list[Choice], ReadBy(), Names("reward"), ROLLOUT] = Field(default_factory=list)
    """Names of the rewards that score a rollout. They are added to the environment's reward. For example `[exact]`, or
    `[{name: math, weight: 0.9}, {name: format, weight: 0.1}]`."""
    objective: Annotated[str | list[str] | None, Names("objective"), TRAINING] = None
    """Name of the objective, or a list of names. An objective sets default values, such as the stages."""
    sampler: Annotated[Choice, Names("sampler"), TRAINING] = "uniform"
    """Name of the sampler, which chooses the tasks of each rollout batch."""
    teacher: Annotated[Choice | None, ReadBy(), Names("teacher"), TRAINING] = None
    """Name of the teacher, which stages such as `distill` ask for log-probs of the sampled tokens."""
    sandbox: Annotated[Choice | None, ReadBy("workflow"), Names("sandbox"), ROLLOUT] = None
    """Name of the sandbox, in which workflows such as `agent` run the commands of a rollout."""
    renderer: Annotated[Choice | None, ReadBy(), Names("renderer"), ROLLOUT] = None
    """Name of the renderer, which converts messages to tokens and tokens to responses. null means `auto` if
    rllm-renderers is installed and `accumulate_reasoning` is false. Otherwise it means `template`."""
    disable_thinking: Annotated[bool, ReadBy(), ROLLOUT] = False
    """Disable reasoning in the chat template (`enable_thinking=False`)."""
    accumulate_reasoning: Annotated[bool, ReadBy("workflow"), ROLLOUT] = False
    """Keep the model's reasoning (up to `</think>`) in prompts after the next user message. Reasoning between tool
    calls is always kept."""
    mask_truncated_samples: Annotated[bool, ReadBy(), TRAINING] = False
    """Mask trajectories whose last response was cut off."""
    filter_token_mismatch: Annotated[
        bool,
        Rejected(
            "Sampled tokens are never decoded and tokenized again, so no trajectory can mismatch and rllm has no such "
            "filter. Remove the key."
        ),
    ] = True
    """Accepted for compatibility with rLLM configs. Mismatches cannot occur in rllm."""
    compact_filtering: Annotated[CompactFilteringSection, TRAINING, SWITCH] = section(CompactFilteringSection)
    transform: Annotated[TransformSection, TRAINING] = section(TransformSection)
    rejection_sample: Annotated[RejectionSection, TRAINING, SWITCH] = section(RejectionSection)
    pipeline: Annotated[PipelineSection, TRAINING] = section(PipelineSection)
    episode_logging: Annotated[EpisodeLoggingSection, TRAINING, no_effect_without("log_episodes=true")] = section(
        EpisodeLoggingSection
    )
    record: Annotated[Literal["off", "outcomes", "tokens"] | None, ReadBy(options_of=("tracker",)), TRAINING] = None
    """Data to store about every step, in `record/` of the run directory. `outcomes` stores ids, numbers and rules: the
    outcome of each trajectory, with the reason. `tokens` also stores text and tokens. `off` stores nothing. null means
    `outcomes` if `rllm-record` is installed."""
    async_training: Annotated[AsyncTrainingSection, SWITCH] = section(AsyncTrainingSection)
    sdk: Annotated[SdkSection, ROLLOUT] = section(SdkSection)
    unused_keys: Literal["error", "warn"] = "error"
    """Treatment of a setting that the run does not use. Use `warn` for sweeps in which some keys apply to only some
    runs."""
    plugins: Annotated[PluginsSection, ROLLOUT] = section(PluginsSection)


class RunConfig(Section):
    """The core's part of the config."""

    rllm: RllmSection = section(RllmSection)
    data: DataSection = section(DataSection)
    sampling: SamplingSection = section(SamplingSection)
