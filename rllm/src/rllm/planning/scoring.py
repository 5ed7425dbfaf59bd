"""The run's rewards, combined into one score. Each reward has a weight and a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rllm.rows.results import ResultError, score_of
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.reward import Reward, RewardPlugin, Rollout, Score
from rllm_core.errors import describe_error, describe_function
from rllm_core.rollout.calls import call

DISAGREEMENT = "reward_disagreement"
"""Metric of a rollout: 1 if one reward accepts the response and a different reward reports that it is not correct."""


@dataclass(frozen=True, kw_only=True)
class WeightedReward:
    """A chosen reward with its weight."""

    chosen: PluginChoice[RewardPlugin[Any]]
    weight: float


class Scorer:
    """The weighted sum of all rewards. If a reward fails, the sum is missing and never silently 0."""

    def __init__(self, rewards: Sequence[WeightedReward]) -> None:
        self._rewards: dict[str, tuple[WeightedReward, Reward]] = {}
        for entry in rewards:
            name = entry.chosen.plugin.name
            number = sum(known.partition("#")[0] == name for known in self._rewards) + 1
            loaded: Reward = entry.chosen.registered.load()(entry.chosen.params)
            self._rewards[name if number == 1 else f"{name}#{number}"] = (entry, loaded)

    async def __call__(self, rollout: Rollout) -> Score:
        """Return the weighted sum.

        - `components` contains each reward times its weight, by name, and its own components as ``name.part``.
        - `metrics` contains each reward without its weight as ``reward.name``, and its metrics as
          ``reward.name.metric``. With several rewards, `DISAGREEMENT` is 1 if they disagree and 0 if not.
        - `extracted` is the extracted answer. If several rewards report one, it is ``name: answer; other name:
          answer``.
        """
        scores = await asyncio.gather(
            *(_score(entry.chosen.plugin, reward, rollout) for entry, reward in self._rewards.values())
        )
        missing: list[str] = []
        components: dict[str, float] = {}
        metrics: dict[str, float] = {}
        for (name, (entry, _)), score in zip(self._rewards.items(), scores, strict=True):
            if score.value is None:
                missing.append(f"reward {name}: {score.feedback}")
                continue
            values = {name: score.value} | {f"{name}.{part}": value for part, value in score.components.items()}
            components |= {each: entry.weight * value for each, value in values.items()}
            metrics |= {f"reward.{each}": value for each, value in values.items()}
            metrics |= {f"reward.{name}.{metric}": value for metric, value in score.metrics.items()}
        metrics |= _disagreement([score for score in scores if score.value is not None])
        known = [score.correct for score in scores if score.correct is not None]
        return Score(
            value=None if missing else sum(components[name] for name in self._rewards),
            correct=all(known) if known else None,
            components=components,
            extracted=self._join_answers(scores),
            metrics=metrics,
            feedback="; ".join(missing),
        )

    def _join_answers(self, scores: Sequence[Score]) -> str | None:
        """Return the extracted answer, with the rewards' names if several rewards report one."""
        found = {name: score.extracted for name, score in zip(self._rewards, scores, strict=True)}
        said = [f"{name}: {text}" for name, text in found.items() if text is not None]
        only = next((text for text in found.values() if text is not None), None)
        return "; ".join(said) if len(said) > 1 else only


def _disagreement(scores: Sequence[Score]) -> dict[str, float]:
    """Return `DISAGREEMENT` of two or more scores. Without `correct`, a value of 1 means right, and others nothing."""
    if len(scores) < 2:
        return {}
    right = any(score.correct is True or (score.correct is None and score.value == 1) for score in scores)
    return {DISAGREEMENT: float(right and any(score.correct is False for score in scores))}


async def _score(plugin: RewardPlugin[Any], reward: Reward, rollout: Rollout) -> Score:
    lacking = sorted(plugin.needs - set(rollout.data))
    if lacking:
        return Score(value=None, feedback=f"the task's data has no {', '.join(map(repr, lacking))}")
    limit = asyncio.timeout(plugin.timeout)
    try:
        async with limit:
            return score_of(await call(reward, rollout, blocking=plugin.blocking))
    except ResultError as error:
        return Score(value=None, feedback=f"{describe_function(reward)} {error}")
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
