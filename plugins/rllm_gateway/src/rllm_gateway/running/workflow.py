"""The workflow `agent`: run a user's agent on a task, and train on its model calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import Field

from rllm.builtin.tasks.task_directories import without_facts
from rllm_core.contracts.params import Params
from rllm_core.contracts.reward import Score
from rllm_core.contracts.workflow import Workflow, WorkflowContext
from rllm_core.data.types import Episode, Step, TerminationReason
from rllm_core.errors import RolloutError
from rllm_core.notices import warn_once
from rllm_core.schema.section import OptionRole
from rllm_gateway.client import REWARD_KEY
from rllm_gateway.running.episodes import REJECTED, AgentResult, add_score, assign_rewards, rollout_of
from rllm_gateway.running.rollout_session import OpenedGateway, RolloutSession, warn_of_rejected_reward
from rllm_gateway.running.runners import Outcome, environment_of
from rllm_gateway.sampling.link_trainer import RolloutSampler
from rllm_gateway.sessions.link import RewardSource, SessionTrace


class AgentParams(Params):
    """Options of ``agent``."""

    agent: str | None = None
    """Your agent, if it is a function: FILE.py:FUNCTION or MODULE:FUNCTION. It is called once per rollout, and may be
    async. Or the name of a coding agent, such as mini-swe-agent, which runs in a sandbox."""
    command: list[str] | None = Field(None, min_length=1)
    """Your agent, if it is a program: its path and its arguments, such as [python, agent.py]. It is started once per
    rollout."""
    arguments: list[str] = Field(default_factory=list)
    """More arguments of an agent that has a name, such as [--config, my.yaml]. Files among them are in the sandbox."""
    timeout: Annotated[float, OptionRole.ROLLOUT_SECONDS] = Field(3600.0, gt=0)
    """Time limit of a rollout, in seconds. If `rllm.agent.trajectory_timeout` is shorter, it applies."""
    reports_reward: bool = False
    """Use the reward that the program of `command` prints in its last line, or sends with the key in `RLLM_REWARD_KEY`.
    Commands of the model that share its output or its environment can then set the reward."""
    unsupported: Literal["refuse", "ignore"] = "refuse"
    """Treatment of request parameters that the gateway does not support: `refuse` answers the request with HTTP 400,
    `ignore` drops the parameter and counts it as ignored."""


NO_CALL = (
    "the agent made no model call, so nothing is trained. Its client must use the address in OPENAI_BASE_URL, "
    "ANTHROPIC_BASE_URL or GOOGLE_GEMINI_BASE_URL."
)


class NoCallWarning:
    """Warns if the first rollouts of a run make no model call."""

    def __init__(self, rollouts: int) -> None:
        """Warn after `rollouts` rollouts without a call. It is the number of rollouts of a step."""
        self._left = rollouts

    def note(self, calls: int) -> None:
        """Count a finished rollout that sent `calls` requests to the gateway."""
        if calls:
            # The agent uses the gateway, so later rollouts without a call are its own choice.
            self._left = 0
        if self._left:
            self._left -= 1
            if not self._left:
                warn_once(NO_CALL)


class Runner(Protocol):
    """Runs an agent, each rollout in a separate process."""

    def reward_source(self, task: Mapping[str, Any]) -> RewardSource:
        """Return the source of the reward of a task if the run has no reward function."""
        ...

    async def run(self, task: Mapping[str, Any], environment: Mapping[str, str], reward_key: str) -> Outcome:
        """Run the agent to its end. Only a function receives the reward key, in its own process."""
        ...


@dataclass(frozen=True, kw_only=True)
class OpenedAgent:
    """The objects that all rollouts of a run share."""

    gateway: OpenedGateway
    runner: Runner
    no_call_warning: NoCallWarning
    """Warns if the agent makes no model call."""
    name: str = "The agent"
    """Name of the agent in errors, with its file and line."""


class AgentWorkflow(Workflow):
    """Opens a session, runs the agent with it, and makes one trajectory per role from its model calls.

    If the agent fails, the rollout fails, and the error contains the agent's last lines. If the agent fails because it
    reached the call limit or the prompt limit, the rollout ends with that termination reason instead.

    The agent's own reward counts only if neither tests nor ``rllm.reward`` give one. A command that the model writes
    could otherwise set the reward of its rollout.
    """

    config_keys: ClassVar[frozenset[str]] = frozenset(
        {"rllm.agent.max_steps", "rllm.accumulate_reasoning", "rllm.reward", "rllm.sandbox", "rllm.sdk.*"}
    )

    def __init__(
        self, context: WorkflowContext, *, unsupported: Any = "refuse", reports_reward: bool = False, **options: Any
    ) -> None:
        # `open` uses agent, command and timeout.
        used = {"agent", "arguments", "command", "timeout"}
        super().__init__(context, **{name: options[name] for name in options.keys() - used})
        self._unsupported = unsupported
        self._reports_reward = reports_reward
        self._opened: OpenedAgent = context.resource
        self._last: Step | None = None
        self._result = AgentResult()

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        opened = self._opened
        self.episode = Episode(id=uid)
        source = self._reward_source(task)
        session = RolloutSession(
            opened.gateway, self.context, task, uid, unsupported=self._unsupported, reward_source=source
        )
        address = await session.open()
        try:
            variables = environment_of(address, without_facts(task))
            if self._reports_reward:
                variables[REWARD_KEY] = address.reward_key
            running = opened.runner.run(task, variables, address.reward_key)
            outcome = await opened.gateway.link.run_unless_stopped(running)
        finally:
            # Do this after a timeout too, because the calls before it are used for training.
            trace = await self._close_session(session)
        session.check(trace)
        result = AgentResult.parse(outcome.result, opened.name)
        is_rejected = outcome.rejected_reward
        if source in ("rllm.reward", "program"):
            is_rejected, result = is_rejected or result.has_reward, result.without_reward()
        if is_rejected:
            self.episode.metrics[REJECTED] = trace.rejected_rewards + 1.0
            warn_of_rejected_reward(source)
        if outcome.code:
            self._end_early(outcome, trace, session.sampler)
            if outcome.result is None:
                return self.episode
        else:
            self.episode.termination_reason = TerminationReason.ENV_DONE
        await self._judge(task, result, trace)
        return self.episode

    def _reward_source(self, task: Mapping[str, Any]) -> RewardSource:
        source = self._opened.runner.reward_source(task)
        if source in ("agent", "program") and self.context.score is not None:
            return "rllm.reward"
        return "agent" if source == "program" and self._reports_reward else source

    async def _close_session(self, session: RolloutSession) -> SessionTrace:
        """Seal the session, and add its trajectories and metrics to the episode."""
        assert self.episode is not None
        trace, made = await session.close()
        self._opened.no_call_warning.note(trace.requests)
        self._last = None if made.last is None else session.sampler.calls[made.last]
        self.episode.trajectories = made.trajectories
        self.episode.metrics.update(made.metrics)
        # This reward applies until the agent returns one. After a timeout, it returns none.
        assign_rewards(self.episode, AgentResult(reward=0.0, rewards=trace.rewards))
        return trace

    def _end_early(self, outcome: Outcome, trace: SessionTrace, sampler: RolloutSampler) -> None:
        assert self.episode is not None
        if sampler.too_long or trace.too_long:
            self.episode.termination_reason = TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED
        elif trace.calls_used_up:
            self.episode.termination_reason = TerminationReason.MAX_TURNS_EXCEEDED
        elif outcome.timed_out:
            self.episode.termination_reason = TerminationReason.TIMEOUT
            self.episode.error = f"{outcome.failure}."
        elif outcome.result is not None and sampler.calls:
            # The agent worked on the task, and the tests have scored its work.
            self.episode.termination_reason = TerminationReason.ENV_DONE
        else:
            raise RolloutError("agent-failed", f"{outcome.failure}.", details="\n".join(outcome.last_lines))

    async def _judge(self, task: Mapping[str, Any], result: AgentResult, trace: SessionTrace) -> None:
        assert self.episode is not None
        given = replace(result, rewards={**trace.rewards, **result.rewards})
        self._result = given
        assign_rewards(self.episode, given)
        if self.context.score is not None and self._last is not None and trace.transcript is not None:
            rollout = rollout_of(task, self.episode, self._last, trace.transcript, given.answer, self.context)
            if (score := await self.context.score(rollout)) is not None:
                self.add_score(score)

    def add_score(self, score: Score) -> None:
        """Add the score, as `Workflow.add_score` requires."""
        assert self.episode is not None
        add_score(self.episode, score, self._result)
