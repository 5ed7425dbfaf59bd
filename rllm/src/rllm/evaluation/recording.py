"""What rewards were shown of an attempt, kept so that other rewards can look at it later."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from rllm_core.contracts.reward import Rollout, Score
from rllm_core.rollout.scoring import Scorer, WeightedReward


@dataclass(frozen=True)
class Scored:
    """An attempt and what the rewards of the run said of it."""

    rollout: Rollout
    score: Score


class Recorder:
    """Scores attempts with the rewards of a run, and hands over what they saw.

    `heard` is set in the context that plays an attempt; a workflow asks for scores in that context or in tasks of it.
    """

    def __init__(self, rewards: Sequence[WeightedReward]) -> None:
        self._score = Scorer(rewards)
        self.heard: ContextVar[list[Scored]] = ContextVar("heard")

    def start_try(self) -> Recorder:
        """Forget what a try that failed has shown."""
        self.heard.get().clear()
        return self

    async def __call__(self, rollout: Rollout) -> Score:
        heard = self.heard.get()
        score = await self._score(rollout)
        heard.append(Scored(rollout, score))
        return score
