"""Workflows: the procedure that produces one rollout of a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
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
    from rllm_core.contracts.sandbox import Sandbox, SandboxSetup
    from rllm_core.data.types import Episode
    from rllm_core.schema.run_config import RunConfig


AGENT_KEYS = frozenset({"rllm.agent.name", "rllm.agent.agent_args", "rllm.reward"})
"""Config keys of a workflow that calls the agent and scores its rollouts."""
TURN_KEYS = AGENT_KEYS | {"rllm.accumulate_reasoning", "rllm.agent.max_steps"}
"""`AGENT_KEYS`, and the config keys of workflows with several turns."""


@dataclass(frozen=True, kw_only=True)
class WorkflowContext:
    """The arguments that a workflow receives in addition to its options. Each rollout gets its own instance."""

    engine: RolloutEngine
    sampling: SamplingParams
    """Sampling settings of this rollout, such as the temperature, with the rollout's own seed."""
    max_prompt_length: int
    max_response_length: int
    """Maximum number of tokens that one model call may sample."""
    max_steps: int
    """Maximum number of turns of the rollout."""
    accumulate_reasoning: bool
    """True if reasoning stays in prompts after the next user message. Before that message it always stays."""
    make_agent: Callable[[], Agent]
    """Returns a new instance of the run's agent."""
    make_environment: Callable[[], Environment] | None
    """Returns a new instance of the run's environment. None if the run has no environment."""
    environment_blocks: bool
    """True if plain (non-async) methods of the environment run in their own thread."""
    label: str
    """The value of `RolloutRequest.label`: ``train``, ``val`` or a name that a stage gives to its own rollouts."""
    rollout: int
    """Number of this try of the rollout, from 0; see ``rllm.workflow.retry_limit``."""
    score: Callable[[Rollout], Awaitable[Score | None]] | None = None
    """Computes the combined reward of ``rllm.reward``. None if the run names no reward. It never raises if a reward
    fails. It returns None if a reward compares the rollouts of a task. `Workflow.add_score` then receives the reward.
    """
    resource: Any = None
    """The resource that `WorkflowPlugin.open` opened for the run. None if it opens nothing."""


@dataclass(frozen=True, kw_only=True)
class OpenedRun:
    """Facts about the run that `WorkflowPlugin.open` receives."""

    config: RunConfig
    engine: RolloutEngine
    directory: Path | None
    """The run directory. None if nothing is trained, as in ``rllm eval``."""
    stop_texts: bool = False
    """True if the engine ends responses at `SamplingParams.stop`. Other engines reject such strings."""
    sandbox: Callable[[SandboxSetup], Awaitable[Sandbox]] | None = None
    """Starts a sandbox of the kind that the run chose (``rllm.sandbox``). None if it chose none."""
    replaces: bool = False
    """True if the first step removes an earlier run, with all files that it has in `directory`."""


class Workflow(ABC):
    """The procedure of one rollout. It sends messages to the engine and actions to the environment, and returns an
    episode.

    One instance produces one rollout. If a subclass has options, add them to its constructor and do not pass them to
    the base class: ``def __init__(self, context, bonus=0.0)``.
    """

    config_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys of ``rllm.agent`` that the workflow reads, such as ``rllm.agent.max_steps``. Add
    ``rllm.accumulate_reasoning`` if a `Conversation` of the workflow can have several responses. If a user sets other
    keys, the run is rejected."""

    def __init__(self, context: WorkflowContext, **unknown: Any) -> None:
        if unknown:
            raise ConfigError(
                "unknown-option",
                f"Workflow {type(self).__name__} has no option {', '.join(unknown)}.",
                "Remove it from workflow_args, or add it to the workflow's constructor.",
            )
        self.context = context
        self.episode: Episode | None = None
        """The current episode. Set it early: after a timeout, its content at that moment is the result."""

    @property
    def rollout_engine(self) -> RolloutEngine:
        """The engine that samples from the model."""
        return self.context.engine

    @abstractmethod
    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        """Run one rollout of `task` (the task's `data`). `uid` is the episode's id, ``"{task_id}:{rollout_idx}"``."""

    def add_score(self, score: Score) -> None:
        """Add the combined reward of ``rllm.reward`` to `episode`, which `run` returned.

        It is called after all rollouts of the task, if `context.score` returned None. That happens only if a subclass
        overrides this method. For other workflows, each rollout is a group with one rollout.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class WorkflowPlugin(Plugin[ParamsT]):
    """A plugin spec that offers a workflow. Users choose it with ``rllm.workflow.name``. Its options are
    ``rllm.workflow.workflow_args``.

    Mark options with the classes of `rllm_core.schema.section` if they affect a run: `Names` (the option names an agent
    or an environment), `OptionRole.ROLLOUT_SECONDS`, `OptionRole.SHAPES_STEP_REWARDS`.

    A workflow sends messages to the engine and actions to the environment, and returns an episode::

        from rllm_core.contracts import Workflow, WorkflowPlugin
        from rllm_core.plugins import hookimpl

        def load_answer_once():
            from rllm_core.data.types import Episode, Trajectory

            class AnswerOnce(Workflow):
                async def run(self, task, uid, **kwargs):
                    prompt = task["prompt_ids"]
                    completion = await self.context.engine.generate(prompt, self.context.sampling, session=uid)
                    trajectory = Trajectory("solver", reward=float(len(completion.token_ids) < 10))
                    trajectory.add_step(prompt, completion.token_ids, completion.logprobs)
                    return Episode(id=uid, trajectories=[trajectory])

            return AnswerOnce

        @hookimpl
        def rllm_workflows():
            yield WorkflowPlugin(
                name="answer_once", summary="One call, brevity is rewarded.", load=load_answer_once
            )
    """

    kind: ClassVar[str] = "workflow"

    load: Callable[[], Callable[..., Workflow]]
    """Returns the `Workflow` class, or a function with the same arguments as the constructor."""
    one_role: bool = False
    """True if every rollout has exactly one trajectory. A run gets a warning if its groups would then contain only one
    rollout."""
    needs_environment: bool = False
    """True if the workflow uses the run's environment. A run without an environment is then rejected before it starts.
    """
    stop_texts: bool = False
    """True if the workflow samples with `SamplingParams.stop`. A run whose engine has no `stop_texts` is then rejected
    before it starts."""
    renders_elsewhere: bool = False
    """True if another process renders its prompts, such as a gateway. A run whose backend has no `token_ids` is then
    rejected before it starts."""
    calls_tools: bool = False
    """True if the model may call tools in this workflow, including `Environment.tools`. The run's renderer is then
    tested with tool calls and results before the first rollout. An environment with tools needs such a workflow."""
    gives_rewards: bool = False
    """True if rollouts may have their own rewards. An environment that needs ``rllm.reward`` then works without it."""
    check_run: Callable[[RunConfig, Any], None] | None = None
    """Takes the run's config and the options. Raises an error for problems that `check` cannot detect, such as a port
    of ``rllm.sdk`` that is in use. Called at the same times as `check`, before a model is loaded."""
    open: Callable[[OpenedRun, Any], AbstractAsyncContextManager[Any]] | None = None
    """Takes the run and the options, and opens a resource that all rollouts of a run share, such as a server. It is
    entered when the engine is ready. It is closed after the last rollout, also after an error."""
