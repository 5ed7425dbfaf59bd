"""Rewards of an agent's rollout, from the agent's result and from the run's reward functions."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

from rllm_core.algorithms.columns import EXTRACTED, REWARD_COMPONENTS, REWARD_ERROR
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.contracts.workflow import WorkflowContext
from rllm_core.data.types import Episode, Step, Trajectory
from rllm_core.errors import RolloutError
from rllm_gateway.exchange import REASONING
from rllm_gateway.session import Said

FIELDS = ("reward", "answer", "correct", "metrics")


@dataclass(frozen=True, kw_only=True)
class Returned:
    """The result that an agent returned."""

    reward: float | None = None
    """Reward of every role that is not in `rewards`. None: no such reward."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Role -> its reward."""
    answer: str | None = None
    """Answer that ``rllm.reward`` scores instead of the last response."""
    correct: bool | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


def read_returned(value: Any) -> Returned:
    """Parse an agent's result. A number is a reward, a string is an answer, and an object contains some of `FIELDS`.

    Raises:
        RolloutError: the result has a different form.
    """
    match value:
        case None:
            return Returned()
        case str():
            return Returned(answer=value)
        case Mapping():
            return _of_object(value)
        case _:
            return Returned(reward=_number("what the agent returned", value))


def _of_object(value: Mapping[str, Any]) -> Returned:
    if unknown := sorted(set(value) - {*FIELDS}):
        raise RolloutError(
            "bad-agent-result",
            f"The agent returned {', '.join(map(repr, unknown))}, which are not fields of a result.",
            f"Return a number, text, or a dict with some of {', '.join(FIELDS)}.",
        )
    reward, answer, correct = value.get("reward"), value.get("answer"), value.get("correct")
    by_role = reward if isinstance(reward, Mapping) else {}
    if not isinstance(correct, bool | None):
        raise RolloutError(
            "bad-agent-result", f"The agent returned {correct!r:.80} as `correct`.", "Return true or false."
        )
    metrics = value.get("metrics") or {}
    if not isinstance(metrics, Mapping):
        raise RolloutError(
            "bad-agent-result", f"The agent returned {metrics!r:.80} as `metrics`.", "Return a dict of numbers by name."
        )
    return Returned(
        reward=None if reward is None or by_role else _number("reward", reward),
        rewards={role: _number(f"reward of {role}", each) for role, each in by_role.items()},
        answer=None if answer is None else str(answer),
        correct=correct,
        metrics={name: _number(name, each) for name, each in metrics.items()},
    )


def _number(name: str, value: Any) -> float:
    if not isinstance(value, Real) or not math.isfinite(value):
        raise RolloutError(
            "bad-agent-result", f"The agent returned {value!r:.80} as {name}.", "Return a finite number."
        )
    return float(value)


NO_REWARD = "the agent gave no reward: it can return one, call rllm_gateway.client.reward, or the run names rllm.reward"


def pay(episode: Episode, returned: Returned) -> None:
    """Set the reward of every trajectory from its role. A trajectory without a reward gets the reason in its info."""
    for trajectory in episode.trajectories:
        reward = returned.rewards.get(trajectory.name, returned.reward)
        _set(trajectory, reward)
        if reward is None:
            trajectory.info[REWARD_ERROR] = _no_reward(episode, returned)
        else:
            trajectory.info.pop(REWARD_ERROR, None)
    rewards = [trajectory.reward for trajectory in episode.trajectories if trajectory.reward is not None]
    episode.is_correct = bool(rewards and max(rewards) > 0) if returned.correct is None else returned.correct
    episode.metrics.update(returned.metrics)


def _no_reward(episode: Episode, returned: Returned) -> str:
    roles = {trajectory.name for trajectory in episode.trajectories}
    unknown = sorted(returned.rewards.keys() - roles)
    if not unknown:
        return NO_REWARD
    known = ", ".join(map(repr, sorted(roles)))
    return f"the agent gave a reward to {', '.join(map(repr, unknown))}, and the roles that made calls are {known}"


def rollout_of(
    task: Mapping[str, Any], episode: Episode, last: Step, said: Said, answer: str | None, context: WorkflowContext
) -> Rollout:
    """Return the `Rollout` that ``rllm.reward`` receives, in the same form as from built-in workflows.

    Args:
        task: data of the task.
        episode: the episode with all trajectories.
        last: the last response.
        said: the conversation that ends with the last response.
        answer: the agent's answer, which replaces the last response. None: the agent returned none.
        context: context of the rollout.
    """
    response = context.engine.renderer.parse(last.prompt_ids, last.response_ids, said.tools)
    response = response.ended_by(last.info["finish_reason"])
    if answer is not None:
        response = replace(response, text=answer, content=answer, finish_reason="stop")
    hidden = () if context.accumulate_reasoning else (REASONING,)
    return Rollout(
        data=copy.deepcopy(dict(task)),
        messages=[{key: value for key, value in each.items() if key not in hidden} for each in said.messages],
        response=response,
        response_tokens=sum(trajectory.response_length for trajectory in episode.trajectories),
    )


def add_score(episode: Episode, found: Score, returned: Returned) -> None:
    """Add the score of ``rllm.reward`` to the rewards that the agent gave to each role."""
    episode.metrics.update(found.metrics)
    for trajectory in episode.trajectories:
        _add(trajectory, found)
    if found.correct is not None:
        episode.is_correct = found.correct
    elif returned.correct is None and found.value is not None:
        episode.is_correct = any((trajectory.reward or 0.0) > 0 for trajectory in episode.trajectories)


def _add(trajectory: Trajectory, found: Score) -> None:
    total = trajectory.info.setdefault(REWARD_COMPONENTS, {})
    for name, value in found.components.items():
        total[name] = total.get(name, 0.0) + float(value)
    if found.extracted is not None:
        trajectory.info[EXTRACTED] = found.extracted
    if found.value is None:
        _set(trajectory, None)
        trajectory.info[REWARD_ERROR] = found.feedback
    else:
        _set(trajectory, (trajectory.reward or 0.0) + found.value)
        trajectory.info.pop(REWARD_ERROR, None)


def _set(trajectory: Trajectory, reward: float | None) -> None:
    """Set a trajectory's reward, and give it to the last step, as for an environment with a reward at the end."""
    trajectory.reward = reward
    for step in trajectory.steps:
        step.reward = None if reward is None else 0.0
    if trajectory.steps:
        trajectory.steps[-1].reward = reward
