"""The reward `novelty_reward`: the share of a task's other rollouts with a different response."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rllm_core.contracts import Rollout, Score

from novelty_reward.options import NoveltyRewardParams


class NoveltyReward:
    """Compare all rollouts of a task in one call. A response that no other rollout has gets 1, a common one 0."""

    def __init__(self, params: NoveltyRewardParams) -> None:
        self._ignore_case = params.ignore_case

    def __call__(self, rollouts: Sequence[Rollout]) -> list[Score]:
        said = [self._normalize(rollout.response.content) for rollout in rollouts]
        counts, others = Counter(said), max(len(said) - 1, 1)
        return [Score(value=(len(said) - counts[text]) / others, extracted=text) for text in said]

    def _normalize(self, text: str) -> str:
        words = " ".join(text.split())
        return words.lower() if self._ignore_case else words
