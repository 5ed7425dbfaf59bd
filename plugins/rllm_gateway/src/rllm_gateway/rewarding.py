"""Rewards of an agent's attempt: what it said itself, and what the rewards of the run say."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from rllm_core.algorithms.columns import EXTRACTED, REWARD_COMPONENTS, REWARD_ERROR
from rllm_core.contracts.renderer import Renderer
from rllm_core.contracts.reward import Attempt, Score
from rllm_core.data.types import Episode, Step, Trajectory
from rllm_gateway.returned import Returned

NO_REWARD = "the agent gave no reward: it can return one, call rllm_gateway.client.reward, or the run names rllm.reward"


def pay(episode: Episode, returned: Returned) -> None:
    """Give every trajectory the reward of its role. One without any says why."""
    for trajectory in episode.trajectories:
        reward = returned.rewards.get(trajectory.name, returned.reward)
        _set(trajectory, reward)
        if reward is None:
            trajectory.info[REWARD_ERROR] = NO_REWARD
        else:
            trajectory.info.pop(REWARD_ERROR, None)
    rewards = [trajectory.reward for trajectory in episode.trajectories if trajectory.reward is not None]
    episode.is_correct = bool(rewards and max(rewards) > 0) if returned.correct is None else returned.correct
    episode.metrics.update(returned.metrics)


async def score(
    episode: Episode,
    last: Step,
    returned: Returned,
    task: Mapping[str, Any],
    of_attempt: Callable[[Attempt], Awaitable[Score]],
    renderer: Renderer,
) -> None:
    """Add the rewards of ``rllm.reward`` to what the agent said of each role.

    They look at `last`, the last reply of all, or at the agent's answer in its place. The conversation that they see is
    one message with the text of that reply's prompt, and the reply.
    """
    reply = replace(renderer.parse(last.prompt_ids, last.response_ids), finish_reason=last.info["finish_reason"])
    if returned.answer is not None:
        reply = replace(reply, text=returned.answer, content=returned.answer, finish_reason="stop")
    attempt = Attempt(
        data=copy.deepcopy(dict(task)),
        messages=[{"role": "user", "content": renderer.text(last.prompt_ids)}, reply.message],
        reply=reply,
        response_tokens=sum(trajectory.response_length for trajectory in episode.trajectories),
    )
    found = await of_attempt(attempt)
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
    """The reward is earned by the last step, as where an environment says at the end how an attempt went."""
    trajectory.reward = reward
    for step in trajectory.steps:
        step.reward = None if reward is None else 0.0
    if trajectory.steps:
        trajectory.steps[-1].reward = reward
