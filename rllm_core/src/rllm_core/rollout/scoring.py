"""The rewards that a run has chosen, as one: each with a weight and a deadline."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllm_core.contracts.chosen import Chosen
from rllm_core.contracts.reward import Attempt, Reward, RewardPlugin, Score
from rllm_core.rollout.calls import call


@dataclass(frozen=True, kw_only=True)
class WeightedReward:
    """A chosen reward and how much it counts."""

    chosen: Chosen[RewardPlugin[Any]]
    weight: float


class Scorer:
    """The weighted sum of all rewards. A reward that fails makes the sum a missing one, never a silent 0."""

    def __init__(self, rewards: Sequence[WeightedReward]) -> None:
        self._rewards: dict[str, tuple[WeightedReward, Reward]] = {}
        for entry in rewards:
            name = entry.chosen.plugin.name
            number = sum(known.partition("#")[0] == name for known in self._rewards) + 1
            loaded: Reward = entry.chosen.registered.load()(entry.chosen.params)
            self._rewards[name if number == 1 else f"{name}#{number}"] = (entry, loaded)

    async def __call__(self, attempt: Attempt) -> Score:
        """The sum; its components are the rewards by name, unweighted, and their own components as ``name/part``."""
        scores = await asyncio.gather(
            *(_score(entry.chosen.plugin, reward, attempt) for entry, reward in self._rewards.values())
        )
        by_name = dict(zip(self._rewards, scores, strict=True))
        missing = [f"reward {name}: {score.feedback}" for name, score in by_name.items() if score.value is None]
        values = {name: score.value for name, score in by_name.items() if score.value is not None}
        known = [score.correct for score in scores if score.correct is not None]
        parts = {f"{name}/{part}": value for name, score in by_name.items() for part, value in score.components.items()}
        return Score(
            value=None if missing else sum(self._rewards[name][0].weight * value for name, value in values.items()),
            correct=all(known) if known else None,
            components=values | parts,
            metrics={f"{name}/{key}": value for name, score in by_name.items() for key, value in score.metrics.items()},
            feedback="; ".join(missing),
        )


async def _score(plugin: RewardPlugin[Any], reward: Reward, attempt: Attempt) -> Score:
    lacking = sorted(plugin.needs - set(attempt.data))
    if lacking:
        return Score(value=None, feedback=f"the task's data has no {', '.join(map(repr, lacking))}")
    limit = asyncio.timeout(plugin.timeout)
    try:
        async with limit:
            return _as_score(await call(reward, attempt, blocking=plugin.blocking))
    except Exception as error:  # noqa: BLE001  (anybody's code; what went wrong is the reward's feedback)
        late = limit.expired()
        return Score(
            value=None,
            feedback=f"not there after {plugin.timeout:g} s" if late else f"{type(error).__name__}: {error}",
        )


def _as_score(result: Any) -> Score:
    """Raises TypeError or ValueError for what is no reward."""
    if result is None:
        return Score(value=None, feedback="it returned None")
    score = result if isinstance(result, Score) else Score(**_fields(result))
    if score.value is not None and not math.isfinite(score.value):
        raise ValueError(f"its value is {score.value}")
    return score


def _fields(result: Any) -> dict[str, Any]:
    if isinstance(result, Mapping):
        return dict(result)
    try:
        return {"value": float(result)}
    except (TypeError, ValueError):
        raise TypeError(f"it returned {result!r:.80}, which is no number") from None
