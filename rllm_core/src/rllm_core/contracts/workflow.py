"""Workflows: how one attempt at a task is made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rllm_core.contracts.plugin import ParamsT, Plugin
from rllm_core.errors import ConfigError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from rllm_core.contracts.agent import Agent
    from rllm_core.contracts.engine import RolloutEngine, SamplingParams
    from rllm_core.contracts.environment import Environment
    from rllm_core.contracts.reward import Rollout, Score
    from rllm_core.data.types import Episode
    from rllm_core.schema.run_config import RunConfig


@dataclass(frozen=True, kw_only=True)
class WorkflowContext:
    """What a workflow is given besides its options, made anew for every attempt."""

    engine: RolloutEngine
    sampling: SamplingParams
    """Temperature and the like for this attempt, with its own seed."""
    max_prompt_length: int
    max_response_length: int
    """Most tokens one model call may sample."""
    max_steps: int
    """Most turns of the attempt."""
    accumulate_reasoning: bool
    """Whether thoughts stay in prompts after the next message of the user; before it they always stay."""
    make_agent: Callable[[], Agent]
    """A fresh agent of the one chosen by name."""
    make_environment: Callable[[], Environment] | None
    """A fresh environment of the one chosen by name; None when the run has none."""
    environment_blocks: bool
    """Whether plain methods of that environment run in a thread of their own."""
    label: str
    """As `RolloutRequest.label`: ``train``, ``val`` or what a stage calls its own rollouts."""
    rollout: int
    """Which try at this rollout it is, from 0; see ``rllm.workflow.retry_limit``."""
    score: Callable[[Rollout], Awaitable[Score]] | None = None
    """The rewards of ``rllm.reward`` as one; None where the run names none. Never raises for what a reward does."""
    resource: Any = None
    """What `WorkflowPlugin.open` has opened for the run; None where it opens nothing."""
    task_batch: int | None = None
    """As `RolloutRequest.task_batch`: rollouts of a task with the same number are compared with each other."""


@dataclass(frozen=True, kw_only=True)
class OpenedRun:
    """What a workflow is told about a run, in `WorkflowPlugin.open`."""

    config: RunConfig
    engine: RolloutEngine
    directory: Path | None
    """The run folder; None where nothing is trained, as in ``rllm eval``."""
    stop_texts: bool = False
    """Whether the engine ends replies at `SamplingParams.stop`; one that cannot refuses them."""
    replaces: bool = False
    """True if the first step removes an earlier run, with all files that it has in `directory`."""


class Workflow(ABC):
    """One instance makes one attempt: messages to the engine, actions to the environment, an episode out.

    A subclass with options names them in its constructor and hands on none of them:
    ``def __init__(self, context, bonus=0.0)``.
    """

    config_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys of ``rllm.agent`` that it acts on, such as ``rllm.agent.max_steps``, and ``rllm.accumulate_reasoning`` where
    a `Conversation` of it has several replies; setting others is an error in a run with this workflow."""

    def __init__(self, context: WorkflowContext, **unknown: Any) -> None:
        if unknown:
            raise ConfigError(
                "unknown-option",
                f"Workflow {type(self).__name__} has no option {', '.join(unknown)}.",
                "Leave it out of workflow_args, or take it in the workflow's constructor.",
            )
        self.context = context
        self.episode: Episode | None = None
        """The episode under way. Set it early: after a timeout, what it holds by then is the result."""

    @property
    def rollout_engine(self) -> RolloutEngine:
        """What samples from the model."""
        return self.context.engine

    @abstractmethod
    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        """Attempt `task` (its `data`). `uid` is the episode's id, ``"{task_id}:{rollout_idx}"``."""


@dataclass(frozen=True, kw_only=True)
class WorkflowPlugin(Plugin[ParamsT]):
    """Offers a workflow. Chosen by ``rllm.workflow.name``; its options are ``rllm.workflow.workflow_args``.

    Marks of `rllm_core.schema.section` say what an option means to a run: `Names` (the agent or the environment that
    the option names), `Means.ROLLOUT_SECONDS`, `Means.SHAPES_STEP_REWARDS`.
    """

    kind: ClassVar[str] = "workflow"

    load: Callable[[], Callable[..., Workflow]]
    """Returns the `Workflow` class, or a function that takes what its constructor takes."""
    one_role: bool = False
    """Whether every attempt is one trajectory; a run whose groups can then hold one attempt alone is warned."""
    needs_environment: bool = False
    """Whether it plays with the environment of the run; one without any ends before it starts."""
    stop_texts: bool = False
    """Whether it samples with `SamplingParams.stop`; a run whose engine has no `stop_texts` ends before it starts."""
    renders_elsewhere: bool = False
    """Whether another process renders its prompts, such as a gateway. A run whose backend has no `token_ids` ends
    before it starts."""
    calls_tools: bool = False
    """Whether the model may call tools in it, those of `Environment.tools` among them. The run's renderer is then tried
    with calls and results before anything is played; an environment with tools needs such a workflow."""
    gives_rewards: bool = False
    """Whether attempts may bring their own rewards; an environment that needs ``rllm.reward`` then does without."""
    check_run: Callable[[RunConfig, Any], None] | None = None
    """Takes the configuration of the run and the options, and raises for what `check` cannot see, such as a port of
    ``rllm.sdk`` that is taken. Called where `check` is, before a model is loaded."""
    sources: Callable[[Any], Mapping[str, str]] | None = None
    """Takes the options and returns what beside them decides how attempts go, such as the file of an agent; as
    `RewardPlugin.sources`."""
    open: Callable[[OpenedRun, Any], AbstractAsyncContextManager[Any]] | None = None
    """Takes the run and the options, and opens what all attempts of a run share, such as a server. Entered once the
    engine is there, left when nothing is played any more, also after an error."""
