"""Record the inputs of rewards, so that other rewards can score the same rollouts later."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from rllm_core.contracts.reward import Rollout, Score
from rllm_core.rollout.scoring import Scorer, WeightedReward


@dataclass(frozen=True)
class Scored:
    """A rollout and its score by the run's rewards."""

    rollout: Rollout
    score: Score


class Recorder:
    """Scorer with a run's rewards that also records their inputs and results.

    Set `heard` in the context that runs a rollout. The workflow requests scores in that context or in its tasks.
    """

    def __init__(self, rewards: Sequence[WeightedReward]) -> None:
        self._score = Scorer(rewards)
        self.heard: ContextVar[list[Scored]] = ContextVar("heard")

    def start_try(self) -> Recorder:
        """Discard the records of an earlier, failed try of the rollout."""
        self.heard.get().clear()
        return self

    async def __call__(self, rollout: Rollout) -> Score:
        heard = self.heard.get()
        score = await self._score(rollout)
        heard.append(Scored(rollout, score))
        return score
