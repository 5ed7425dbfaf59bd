"""The run's rewards, combined into one score. Each reward has a weight and a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rllm.rows.results import ResultError, results_of, score_of
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.reward import RewardPlugin, RewardScope, Rollout, Score
from rllm_core.errors import describe_error, describe_function
from rllm_core.rollout.calls import call
from rllm_core.rollout.waits import Wait

DISAGREEMENT = "reward_disagreement"
"""Metric of a rollout: 1 if one reward accepts the response and a different reward reports that it is not correct."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class WeightedReward:
    """A chosen reward with its weight."""

    chosen: PluginChoice[RewardPlugin[Any]]
    weight: float

    @property
    def scope(self) -> RewardScope:
        scope = self.chosen.plugin.scope
        return scope(self.chosen.params) if callable(scope) else scope


@dataclass(frozen=True, kw_only=True)
class PartialScore:
    """A rollout with the scores of the rewards that need no other rollout, by name."""

    rollout: Rollout
    scores: Mapping[str, Score]


@dataclass(frozen=True, kw_only=True)
class _LoadedReward:
    plugin: RewardPlugin[Any]
    function: Callable[[Any], Any]
    weight: float
    scope: RewardScope


class Scorer:
    """The weighted sum of all rewards. If a reward fails, the sum is missing and never silently 0."""

    def __init__(self, rewards: Sequence[WeightedReward]) -> None:
        self._rewards: dict[str, _LoadedReward] = {}
        for entry in rewards:
            name = entry.chosen.plugin.name
            number = sum(known.partition("#")[0] == name for known in self._rewards) + 1
            self._rewards[name if number == 1 else f"{name}#{number}"] = _LoadedReward(
                plugin=entry.chosen.plugin,
                function=entry.chosen.registered.load()(entry.chosen.params),
                weight=entry.weight,
                scope=entry.scope,
            )

    @property
    def has_groups(self) -> bool:
        """True if a reward compares the rollouts of a task."""
        return any(reward.scope == "group" for reward in self._rewards.values())

    async def __call__(self, rollout: Rollout) -> Score:
        """Return the score of a rollout that is the only one of its task. See `score_group`."""
        (score,) = await self.score_all([rollout])
        return score

    async def score_all(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """Return the scores of all rollouts of a task."""
        return await self.score_group(await asyncio.gather(*map(self.score_rollout, rollouts)))

    async def score_rollout(self, rollout: Rollout) -> PartialScore:
        """Compute the rewards that need no other rollout."""
        named = {name: reward for name, reward in self._rewards.items() if reward.scope == "rollout"}
        scores = await asyncio.gather(*(_score(reward, rollout) for reward in named.values()))
        return PartialScore(rollout=rollout, scores=dict(zip(named, scores, strict=True)))

    async def score_group(self, group: Sequence[PartialScore]) -> list[Score]:
        """Compute the other rewards, and return the weighted sum of all rewards for each rollout of a task.

        - `components` contains each reward times its weight, by name, and its own components as ``name.part``.
        - `metrics` contains each reward without its weight as ``reward.name``, and its metrics as
          ``reward.name.metric``. With several rewards, `DISAGREEMENT` is 1 if they disagree and 0 if not.
        - `extracted` is the extracted answer. If several rewards report one, it is ``name: answer; other name:
          answer``.
        """
        named = {name: reward for name, reward in self._rewards.items() if reward.scope == "group"}
        rollouts = [each.rollout for each in group]
        found = await asyncio.gather(*(_score_group(reward, rollouts) for reward in named.values()))
        by_name = dict(zip(named, found, strict=True))
        return [
            self._combine({**each.scores} | {name: scores[index] for name, scores in by_name.items()})
            for index, each in enumerate(group)
        ]

    def _combine(self, scores: Mapping[str, Score]) -> Score:
        missing: list[str] = []
        components: dict[str, float] = {}
        metrics: dict[str, float] = {}
        summed: list[str] = []
        for name, reward in self._rewards.items():
            score = scores[name]
            if score.value is None:
                if score.applies:
                    missing.append(f"reward {name}: {score.feedback}")
                    continue
            else:
                summed.append(name)
            values = {} if score.value is None else {name: score.value}
            values |= {f"{name}.{part}": value for part, value in score.components.items()}
            components |= {each: reward.weight * value for each, value in values.items()}
            metrics |= {f"reward.{each}": value for each, value in values.items()}
            metrics |= {f"reward.{name}.{metric}": value for metric, value in score.metrics.items()}
        if not summed and not missing:
            missing.append(f"no reward applies: {', '.join(self._rewards)}")
        metrics |= _disagreement([score for score in scores.values() if score.value is not None])
        known = [score.correct for score in scores.values() if score.correct is not None]
        return Score(
            value=None if missing else sum(components[name] for name in summed),
            correct=all(known) if known else None,
            components=components,
            extracted=self._join_answers(scores),
            metrics=metrics,
            feedback="; ".join(missing),
        )

    def _join_answers(self, scores: Mapping[str, Score]) -> str | None:
        """Return the extracted answer, with the rewards' names if several rewards report one."""
        found = {name: scores[name].extracted for name in self._rewards}
        said = [f"{name}: {text}" for name, text in found.items() if text is not None]
        only = next((text for text in found.values() if text is not None), None)
        return "; ".join(said) if len(said) > 1 else only


def _disagreement(scores: Sequence[Score]) -> dict[str, float]:
    """Return `DISAGREEMENT` of two or more scores. Without `correct`, a value of 1 means right, and others nothing."""
    if len(scores) < 2:
        return {}
    right = any(score.correct is True or (score.correct is None and score.value == 1) for score in scores)
    return {DISAGREEMENT: float(right and any(score.correct is False for score in scores))}


async def _score(reward: _LoadedReward, rollout: Rollout) -> Score:
    return await _call(reward, rollout, rollout.data, lambda result: _read_score(reward, result))


async def _score_group(reward: _LoadedReward, rollouts: Sequence[Rollout]) -> list[Score]:
    """Return a score for each rollout. If the call fails, all of them are missing."""

    def read(result: Any) -> list[Score]:
        return [_read_score(reward, each) for each in results_of(result, len(rollouts))]

    found = await _call(reward, rollouts, rollouts[0].data, read)
    return [found] * len(rollouts) if isinstance(found, Score) else found


def _read_score(reward: _LoadedReward, result: Any) -> Score:
    try:
        return score_of(result)
    except ResultError as error:
        return Score(value=None, feedback=f"{describe_function(reward.function)} {error}")


async def _call(reward: _LoadedReward, argument: Any, data: Mapping[str, Any], read: Callable[[Any], T]) -> T | Score:
    """Call a reward and read its result. Return a missing score if it fails."""
    plugin = reward.plugin
    lacking = sorted(plugin.needs - set(data))
    if lacking:
        return Score(value=None, feedback=f"the task's data has no {', '.join(map(repr, lacking))}")
    limit = asyncio.timeout(plugin.timeout)
    try:
        async with limit:
            with Wait("reward", plugin.name):
                result = await call(reward.function, argument, blocking=plugin.blocking)
            return read(result)
    except ResultError as error:
        return Score(value=None, feedback=f"{describe_function(reward.function)} {error}")
    except asyncio.CancelledError as error:
        if (this := asyncio.current_task()) is None or this.cancelling():
            raise
        return Score(value=None, feedback=describe_error(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001  (external code; the error becomes the reward's feedback)
        late = limit.expired()
        return Score(
            value=None,
            feedback=f"not finished after {plugin.timeout:g} s" if late else describe_error(error),
        )
