"""Every config key of the core: name, type, default and meaning. Unknown keys are errors.

A backend adds its own top-level sections (``model``, ``training``, …), and may add keys to ``data`` and ``sampling``.
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
from rllm_core.schema.data_sections import DataSection, SamplingSection
from rllm_core.schema.run_sections import (
    AgentSection,
    AsyncTrainingSection,
    EnvSection,
    EpisodeLoggingSection,
    PluginsSection,
    RolloutSection,
    TrainerSection,
    WorkflowSection,
)
from rllm_core.schema.sdk_section import SdkSection
from rllm_core.schema.section import (
    PLAYING,
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
    """Backend-agnostic settings."""

    composed: list[dict[str, str]] | None = Field(
        None,
        description="Written into whole configurations (`config.yaml`, `build_train_config`): what you gave to make "
        "them, and where. When such a file is read, what stands here counts as set by you, and what was changed since.",
    )
    backend: Annotated[str, Names("backend"), PLAYING] = Field(
        "local", description="Backend, by name; also written rllm/backend=NAME."
    )
    profile: Annotated[str | None, PLAYING] = Field(
        None, description="Ready-made settings of the backend for one kind of machine, by name, such as `cpu` of verl."
    )
    agent: Annotated[AgentSection, PLAYING] = section(AgentSection)
    env: Annotated[EnvSection, PLAYING] = section(EnvSection)
    workflow: Annotated[WorkflowSection, PLAYING] = section(WorkflowSection)
    rollout: RolloutSection = section(RolloutSection)
    trainer: TrainerSection = section(TrainerSection)
    algorithm: Annotated[AlgorithmSection, TRAINING] = section(AlgorithmSection)
    stepwise_advantage: Annotated[StepwiseAdvantageSection, TRAINING, SWITCH] = section(StepwiseAdvantageSection)
    reward: Annotated[list[Choice], ReadBy(), Names("reward"), PLAYING] = Field(
        default_factory=list,
        description="Rewards of an attempt, by name, added to what the environment gives: `[exact]`, or "
        "`[{name: math, weight: 0.9}, {name: format, weight: 0.1}]`.",
    )
    renderer: Annotated[Choice | None, ReadBy(), Names("renderer"), PLAYING] = Field(
        None,
        description="How messages become tokens, and tokens replies, by name. null: `auto` if rllm-renderers is "
        "installed and `accumulate_reasoning` is off, else `template`.",
    )
    disable_thinking: Annotated[bool, ReadBy(), PLAYING] = Field(
        False, description="Ask the chat template for answers without a thinking part (`enable_thinking=False`)."
    )
    accumulate_reasoning: Annotated[bool, ReadBy("workflow"), PLAYING] = Field(
        False,
        description="Keep what the model thought (up to `</think>`) in prompts after the user has spoken again. While "
        "it calls tools its thoughts stay anyway.",
    )
    mask_truncated_samples: Annotated[bool, ReadBy(), TRAINING] = Field(
        False, description="Take trajectories whose last answer was cut off out of the gradient."
    )
    filter_token_mismatch: Annotated[
        bool,
        Rejected(
            "What the model sampled is never decoded and tokenised again, so no trajectory can mismatch and there is "
            "no filter to switch off. Remove the key."
        ),
    ] = Field(True, description="Accepted for configurations of rLLM; mismatches cannot happen here.")
    compact_filtering: Annotated[CompactFilteringSection, TRAINING, SWITCH] = section(CompactFilteringSection)
    transform: Annotated[TransformSection, TRAINING] = section(TransformSection)
    rejection_sample: Annotated[RejectionSection, TRAINING, SWITCH] = section(RejectionSection)
    pipeline: Annotated[PipelineSection, TRAINING] = section(PipelineSection)
    episode_logging: Annotated[EpisodeLoggingSection, TRAINING, no_effect_without("log_episodes=true")] = section(
        EpisodeLoggingSection
    )
    record: Annotated[Literal["off", "fates", "tokens"] | None, ReadBy(options_of=("tracker",)), TRAINING] = Field(
        None,
        description="What is kept of every step, in `record/` of the run folder: `fates` (ids, numbers and rules: what "
        "became of each trajectory, and why), `tokens` (texts and tokens too) or `off`. null: `fates` where "
        "`rllm-record` is installed.",
    )
    async_training: Annotated[AsyncTrainingSection, SWITCH] = section(AsyncTrainingSection)
    sdk: Annotated[SdkSection, PLAYING] = section(SdkSection)
    unused_keys: Literal["error", "warn"] = Field(
        "error",
        description="What happens to a value of yours that nothing in the run acts on. `warn` is for sweeps, of which "
        "one key or another does not apply to every run.",
    )
    plugins: Annotated[PluginsSection, PLAYING] = section(PluginsSection)


class RunConfig(Section):
    """The core's part of a config."""

    rllm: RllmSection = section(RllmSection)
    data: DataSection = section(DataSection)
    sampling: SamplingSection = section(SamplingSection)
