"""The built-in workflows: one response, or several turns with an environment until it is done."""

from __future__ import annotations

import asyncio
import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

from rllm_core.algorithms.columns import EXTRACTED, REWARD_COMPONENTS, REWARD_ERROR
from rllm_core.contracts.agent import Agent
from rllm_core.contracts.environment import Environment, Outcome
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.contracts.workflow import Workflow, WorkflowContext
from rllm_core.data.messages import Action, Message, Response, Tool
from rllm_core.data.types import Episode, TerminationReason, Trajectory
from rllm_core.errors import ConfigError, PluginError, RolloutError, describe_function
from rllm_core.rollout.calls import call
from rllm_core.rollout.conversation import Conversation, PromptTooLongError
from rllm_core.rollout.options import AgentWorkflowParams, MathAgentParams
from rllm_core.rollout.waits import Wait

SECONDS_TO_CLOSE = 30.0
"""Seconds after which rllm stops waiting for an environment's `close`, so that it cannot block other rollouts."""


class EnvironmentWorkflow(Workflow):
    """Base class of workflows that use the run's environment for at most `max_turns` turns.

    After the rollout, the rewards of its steps are shaped (`gamma`, `reward_bonus_coeff`, see `AgentWorkflowParams`).
    The trajectory's own reward remains the sum of the environment's rewards.
    """

    role = "agent"
    config_keys: ClassVar[frozenset[str]] = frozenset({"rllm.agent.name", "rllm.agent.agent_args", "rllm.reward"})

    def __init__(
        self, context: WorkflowContext, *, gamma: float = 0.0, reward_bonus_coeff: float = 0.0, **options: Any
    ) -> None:
        # The runner has already used the other options of AgentWorkflowParams: they choose the agent, the environment
        # and the timeout.
        super().__init__(context, **{name: options[name] for name in options.keys() - AgentWorkflowParams.model_fields})
        self._gamma = gamma
        self._reward_bonus_coeff = reward_bonus_coeff
        self._judged = False  # True if the environment has reported `correct`
        self._is_waiting = False  # True until `add_score` receives the reward of a rollout that has ended
        self._earned = self._step_earned = 0.0  # rewards of the environment: of the trajectory, and of its last step

    @property
    @abstractmethod
    def max_turns(self) -> int:
        """Maximum number of turns of the rollout."""

    async def offered_tools(self, environment: Environment, task: Mapping[str, Any]) -> Sequence[Tool]:
        """Return the tools that the model may call in this rollout. It is empty unless a subclass runs tools."""
        return ()

    async def answers_to_calls(self, response: Response, episode: Episode) -> Sequence[Message]:
        """Return messages with the results of the tools that `response` calls. If it is empty, the response is the
        action."""
        return ()

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        make_environment = self.context.make_environment
        if make_environment is None:
            raise ConfigError(
                "no-environment",
                f"Workflow {type(self).__name__} needs an environment, and this run has none.",
                "Choose one with `rllm train NAME` or rllm.env.name=NAME.",
            )
        trajectory = Trajectory(self.role, uid=f"{uid}/{self.role}")
        # Set before the first turn, so that the turns before a timeout are kept.
        self.episode = Episode(id=uid, trajectories=[trajectory])
        conversation = Conversation(self.context, trajectory, session=f"{trajectory.uid}#{self.context.sampling.seed}")
        agent = self.context.make_agent()
        environment = await self._ask(make_environment)
        try:
            await self._run_episode(environment, agent, conversation, task, self.episode)
            await self._score(environment, conversation, task)
            if not self._is_waiting:
                _mark_cut_off(self.episode)
        finally:
            # Also after a timeout, because the turns before it are trained on.
            if not self._is_waiting:
                self._shape_step_rewards(trajectory)
            try:
                await self._close(environment)
            finally:
                await conversation.close()
        return self.episode

    async def _run_episode(
        self,
        environment: Environment,
        agent: Agent,
        conversation: Conversation,
        task: dict[str, Any],
        episode: Episode,
    ) -> None:
        trajectory = conversation.trajectory
        trajectory.reward = 0.0
        observation = await self._ask(environment.reset, task)
        conversation.add_observation(_messages(agent, observation, environment.reset))
        conversation.tools = await self.offered_tools(environment, task)
        for _ in range(self.max_turns):
            try:
                step = await conversation.generate()
            except PromptTooLongError:
                episode.termination_reason = TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED
                return
            response = conversation.parse_step(step)
            if answers := await self.answers_to_calls(response, episode):
                step.reward = 0.0
                conversation.add_observation(answers)
                continue
            outcome = await self._ask(environment.step, _action(agent, response, environment))
            numbers = _numbers(outcome, environment)
            step.reward = numbers[""]
            trajectory.reward += step.reward
            if not math.isfinite(step.reward):
                why = f"{describe_function(environment.step)} returned reward {step.reward}"
                trajectory.info[REWARD_ERROR] = outcome.reward_error or why
            _add_components(trajectory, outcome.reward_components)
            if outcome.done:
                episode.metrics.update({name: numbers[name] for name in outcome.metrics})
                self._judged = outcome.correct is not None
                episode.is_correct = bool(outcome.correct) if self._judged else trajectory.reward > 0
                episode.termination_reason = TerminationReason.ENV_DONE
                return
            conversation.add_observation(_messages(agent, outcome.observation, environment.step))
        episode.termination_reason = TerminationReason.MAX_TURNS_EXCEEDED

    async def _score(self, environment: Environment, conversation: Conversation, task: dict[str, Any]) -> None:
        """Add the rewards of ``rllm.reward`` to the environment's reward, at the last step."""
        trajectory = conversation.trajectory
        if self.context.score is None or not trajectory.steps:
            return
        last = trajectory.steps[-1]
        self._earned, self._step_earned = trajectory.reward or 0.0, last.reward or 0.0
        # The reward is missing until all rewards are computed, because the rollout may time out before that.
        trajectory.reward = last.reward = None
        trajectory.info[REWARD_ERROR] = "the rollout timed out before its rewards were computed"
        rollout = Rollout(
            data=copy.deepcopy(task),
            messages=conversation.history(),
            response=conversation.parse_step(last),
            response_tokens=trajectory.response_length,
            state=await self._ask(environment.final_state),
            response_ids=tuple(map(int, last.response_ids)),
            task_batch=self.context.sampling.task_batch,
        )
        score = await self.context.score(rollout)
        self._is_waiting = score is None
        if score is not None:
            self._add(score)

    def add_score(self, score: Score) -> None:
        """Add the score, as `Workflow.add_score` requires."""
        assert self.episode is not None
        self._is_waiting = False
        self._add(score)
        _mark_cut_off(self.episode)
        self._shape_step_rewards(self.episode.trajectories[0])

    def _add(self, score: Score) -> None:
        assert self.episode is not None
        episode, trajectory = self.episode, self.episode.trajectories[0]
        last = trajectory.steps[-1]
        _add_components(trajectory, score.components)
        episode.metrics.update(score.metrics)
        if score.extracted is not None:
            trajectory.info[EXTRACTED] = score.extracted
        if score.value is None:
            trajectory.info[REWARD_ERROR] = score.feedback
            return
        del trajectory.info[REWARD_ERROR]
        trajectory.reward, last.reward = self._earned + score.value, self._step_earned + score.value
        if score.correct is not None:
            episode.is_correct = score.correct
        elif not self._judged:
            episode.is_correct = trajectory.reward > 0

    def _shape_step_rewards(self, trajectory: Trajectory) -> None:
        rewarded = [(step, step.reward) for step in trajectory.steps if step.reward is not None]
        rewards = shape_rewards(
            [reward for _, reward in rewarded], gamma=self._gamma, bonus_coeff=self._reward_bonus_coeff
        )
        for (step, _), reward in zip(rewarded, rewards, strict=True):
            step.reward = reward

    async def _close(self, environment: Environment) -> None:
        """Close the environment within a separate time limit, because the rollout's limit may have expired. In both
        cases the rollout is kept."""
        if getattr(environment.close, "__func__", None) is Environment.close:
            return  # The environment has nothing to release.
        limit = asyncio.timeout(SECONDS_TO_CLOSE)
        try:
            async with limit:
                await self._ask(environment.close)
        except TimeoutError:
            if not limit.expired():
                raise

    async def _ask(self, method: Callable[..., Any], *arguments: Any) -> Any:
        with Wait("environment", getattr(method, "__qualname__", "")):
            return await call(method, *arguments, blocking=self.context.environment_blocks)


class MultiTurnWorkflow(EnvironmentWorkflow):
    """Turns until the environment is done or `rllm.agent.max_steps` is reached."""

    config_keys: ClassVar[frozenset[str]] = EnvironmentWorkflow.config_keys | {
        "rllm.accumulate_reasoning",
        "rllm.agent.max_steps",
    }

    @property
    def max_turns(self) -> int:
        return self.context.max_steps


class SingleTurnWorkflow(EnvironmentWorkflow):
    """One prompt and one response."""

    @property
    def max_turns(self) -> int:
        return 1


def _mark_cut_off(episode: Episode) -> None:
    """Mark a rollout whose last response was cut off. A correct one is not marked, because its answer was complete
    enough for the reward."""
    done = episode.termination_reason is TerminationReason.ENV_DONE
    if done and not episode.is_correct and episode.trajectories[0].steps[-1].info["finish_reason"] == "length":
        episode.termination_reason = TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED


def _messages(agent: Agent, observation: str | Sequence[Message], source: Callable[..., Any]) -> Sequence[Message]:
    """Return the agent's messages for an observation that the method `source` returned."""
    if not isinstance(observation, str) and not _is_messages(observation):
        raise _bad_result(source, f"the observation {observation!r:.80}", "Return text, or a list of messages.")
    messages = agent.observe(observation)
    if not _is_messages(messages):
        raise _bad_result(agent.observe, f"{messages!r:.80}", "Return a list of messages.")
    return messages


def _is_messages(value: Any) -> bool:
    # Lists of dicts are usual, and checks of an abstract class are slow.
    is_list = isinstance(value, list) or (isinstance(value, Sequence) and not isinstance(value, str | bytes))
    return is_list and all(isinstance(each, dict | Mapping) for each in value)


def _numbers(outcome: Any, environment: Environment) -> dict[str, float]:
    """Return the metrics and components of an outcome, and its reward under the name ``""``, as numbers."""
    if not isinstance(outcome, Outcome):
        remedy = "Return an Outcome, for example Outcome(reward=1.0, done=True)."
        raise _bad_result(environment.step, f"{outcome!r:.80}", remedy)
    numbers: dict[str, float] = {}
    for name, value in {**outcome.metrics, **outcome.reward_components, "": outcome.reward}.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            what = f"{value!r:.80} as {name or 'reward'!r}"
            raise _bad_result(environment.step, what, "Return a number there.") from None
    return numbers


def _bad_result(method: Callable[..., Any], what: str, remedy: str) -> RolloutError:
    return RolloutError("bad-environment-result", f"{describe_function(method)} returned {what}.", remedy)


def _add_components(trajectory: Trajectory, components: Mapping[str, float]) -> None:
    if components:
        total = trajectory.info.setdefault(REWARD_COMPONENTS, {})
        for name, value in components.items():
            total[name] = total.get(name, 0.0) + float(value)


def _action(agent: Agent, response: Response, environment: Environment) -> Action:
    action = agent.act(response)
    if isinstance(action, str) or (isinstance(action, Mapping) and environment.takes_objects):
        return action
    takes = "text or a JSON object" if environment.takes_objects else "text"
    raise PluginError(
        "bad-workflow-result",
        f"{describe_function(agent.act)} returned {action!r:.80}, and {type(environment).__name__} takes {takes}.",
        "Choose an agent for this environment with rllm.agent.name.",
    )


def shape_rewards(rewards: Sequence[float], *, gamma: float, bonus_coeff: float) -> list[float]:
    """Return the rewards with the bonus and then, if `gamma` is above 0, as rewards to go.

    Args:
        rewards: the environment's reward for each step, in order.
        gamma: discount of later steps, from 0 to 1. With 0, each step keeps its own reward.
        bonus_coeff: weight of the bonus. 0 means no bonus.
    """
    with_bonus = add_bonus(rewards, bonus_coeff)
    return reward_to_go(with_bonus, gamma) if gamma > 0 else with_bonus


def add_bonus(rewards: Sequence[float], coeff: float) -> list[float]:
    """Add to each step except the first `coeff` times the difference to the previous step's reward."""
    if coeff == 0:
        return list(rewards)  # no arithmetic, because 0 times an infinite reward is NaN
    return [*rewards[:1], *(later + coeff * (later - earlier) for earlier, later in pairwise(rewards))]


def reward_to_go(rewards: Sequence[float], gamma: float) -> list[float]:
    """Return for each step its own reward plus later rewards, discounted by `gamma` per step."""
    returns: list[float] = []
    following = 0.0
    for reward in reversed(rewards):
        following = reward + gamma * following
        returns.append(following)
    return returns[::-1]


class MathAgent(Agent):
    """An agent that passes observations on as user messages and uses the response's content as the action."""

    def __init__(self, params: MathAgentParams) -> None:
        prompt = params.system_prompt
        self._opening: list[Message] = [] if prompt is None else [{"role": "system", "content": prompt}]

    def observe(self, observation: str | Sequence[Message]) -> Sequence[Message]:
        said = [{"role": "user", "content": observation}] if isinstance(observation, str) else observation
        opening, self._opening = self._opening, []
        return [*opening, *said]

    def act(self, response: Response) -> str:
        return response.content
