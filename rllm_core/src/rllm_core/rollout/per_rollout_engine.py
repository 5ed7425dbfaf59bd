"""PerRolloutEngine: the engine of one rollout, which gives every call its own seed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, EngineWrapper, RolloutEngine, SamplingParams
from rllm_core.seeding import call_seed, prompt_digest


class PerRolloutEngine(EngineWrapper):
    """An engine that derives the seed of each call from the rollout's seed, the prompt's tokens and a sibling number.

    The sampled tokens do not depend on the order in which calls of different prompts arrive, or on how they are sent.
    Repeated calls with the same prompt are different samples. They are numbered in the order of the calls.
    """

    def __init__(self, engine: RolloutEngine) -> None:
        super().__init__(engine)
        self._siblings: Counter[tuple[int, str]] = Counter()
        self._failed: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
        """Numbers of calls that raised an exception. A repeated call gets the same number and so the same sample."""

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """See `RolloutEngine.generate`. `sampling.seed` is the rollout's seed."""
        prompt = np.asarray(prompt_ids, np.int32)
        key = (sampling.seed, prompt_digest(prompt))
        if failed := self._failed.get(key):
            # Use the smallest number, so that several repeated calls keep their order.
            sibling = min(failed)
            failed.remove(sibling)
        else:
            sibling = self._siblings[key]
        self._siblings[key] = max(self._siblings[key], sibling + 1)
        own = sampling.with_seed(call_seed(*key, sibling))
        try:
            return await self.inner.generate(prompt, own, session=session)
        except BaseException:
            self._failed[key].append(sibling)
            raise
