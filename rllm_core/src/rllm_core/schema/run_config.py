"""Every config key of the core: name, type, default and meaning. Unknown keys are errors.

A backend adds its own top-level sections (``model``, ``training``, …) with a model of its own, and may add keys of its
own to ``data`` and ``sampling``.
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
from rllm_core.schema.section import ByPlugins, Choice, Names, Refused, Section, SharedOption


class RllmSection(Section):
    """Backend-agnostic settings."""

    composed: list[dict[str, str]] | None = Field(
        None,
        description="Written into whole configurations (`config.yaml`, `build_train_config`): what you gave to make "
        "them, and where. What is still as that gives it does not count as set by you.",
    )
    backend: Annotated[str, Names("backend")] = Field(
        "local", description="Backend, by name; also written rllm/backend=NAME."
    )
    profile: str | None = Field(
        None, description="Ready-made settings of the backend for one kind of machine, by name, such as `cpu` of verl."
    )
    agent: AgentSection = Field(default_factory=AgentSection, description="Who plays, and limits of one attempt.")
    env: EnvSection = Field(default_factory=EnvSection, description="What is played.")
    workflow: WorkflowSection = Field(default_factory=WorkflowSection, description="How an attempt is made.")
    rollout: RolloutSection = Field(default_factory=RolloutSection, description="How many attempts are made.")
    trainer: TrainerSection = Field(default_factory=TrainerSection, description="The training loop.")
    algorithm: AlgorithmSection = Field(default_factory=AlgorithmSection, description="From rewards to gradients.")
    stepwise_advantage: StepwiseAdvantageSection = Field(
        default_factory=StepwiseAdvantageSection, description="How an advantage reaches the steps of a trajectory."
    )
    reward: Annotated[list[Choice], ByPlugins(), Names("reward")] = Field(
        default_factory=list,
        description="Rewards of an attempt, by name, added to what the environment gives: `[exact]`, or "
        "`[{name: math, weight: 0.9}, {name: format, weight: 0.1}]`.",
    )
    renderer: Annotated[Choice, ByPlugins(), Names("renderer")] = Field(
        "template", description="How messages become tokens, and tokens replies, by name."
    )
    disable_thinking: Annotated[bool, ByPlugins()] = Field(
        False, description="Ask the chat template for answers without a thinking part (`enable_thinking=False`)."
    )
    accumulate_reasoning: Annotated[bool, ByPlugins("workflow")] = Field(
        False,
        description="Keep what the model thought (up to `</think>`) in prompts after the user has spoken again. While "
        "it calls tools its thoughts stay anyway.",
    )
    mask_truncated_samples: Annotated[bool, ByPlugins()] = Field(
        False, description="Take trajectories whose last answer was cut off out of the gradient."
    )
    filter_token_mismatch: Annotated[
        bool,
        Refused(
            "What the model sampled is never decoded and tokenised again, so no trajectory can mismatch and there is "
            "no filter to switch off. Remove the key."
        ),
    ] = Field(True, description="Accepted for configurations of rLLM; mismatches cannot happen here.")
    compact_filtering: CompactFilteringSection = Field(
        default_factory=CompactFilteringSection, description="Attempts masked by how they ended."
    )
    transform: TransformSection = Field(default_factory=TransformSection, description="From episodes to groups.")
    rejection_sample: RejectionSection = Field(default_factory=RejectionSection, description="Groups not trained on.")
    pipeline: PipelineSection = Field(default_factory=PipelineSection, description="The stages of a training step.")
    episode_logging: EpisodeLoggingSection = Field(
        default_factory=EpisodeLoggingSection, description="Episodes kept on disk."
    )
    record: Annotated[Literal["off", "fates", "tokens"] | None, SharedOption(("tracker",))] = Field(
        None,
        description="What is kept of every step, in `record/` of the run folder: `fates` (ids, numbers and rules: what "
        "became of each trajectory, and why), `tokens` (texts and tokens too) or `off`. null: `fates` where "
        "`rllm-record` is installed.",
    )
    async_training: AsyncTrainingSection = Field(
        default_factory=AsyncTrainingSection, description="Rollouts that go on while weights are updated."
    )
    sdk: SdkSection = Field(default_factory=SdkSection, description="Traces of agents outside of workflows.")
    unused_keys: Literal["error", "warn"] = Field(
        "error",
        description="What happens to a value of yours that nothing in the run acts on. `warn` is for sweeps, of which "
        "one key or another does not apply to every run.",
    )
    plugins: PluginsSection = Field(default_factory=PluginsSection, description="Which plugins there are.")


class RunConfig(Section):
    """The core's part of a config."""

    rllm: RllmSection = Field(default_factory=RllmSection, description="Backend-agnostic settings.")
    data: DataSection = Field(default_factory=DataSection, description="Tasks, batches and lengths.")
    sampling: SamplingSection = Field(default_factory=SamplingSection, description="How tokens are drawn.")
