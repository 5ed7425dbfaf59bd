"""AttemptEngine: the engine as one attempt sees it, with a seed for every call."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, EngineWrapper, RolloutEngine, SamplingParams
from rllm_core.seeding import call_seed, prompt_digest


class PerRolloutEngine(EngineWrapper):
    """Turns the seed of the attempt into one per call: a function of the prompt's tokens and of its sibling number.

    The order in which calls of different prompts arrive, and what carries them, never change a token. The same prompt
    twice is two samples, numbered as they are asked for.
    """

    def __init__(self, engine: RolloutEngine) -> None:
        super().__init__(engine)
        self._siblings: Counter[tuple[int, str]] = Counter()
        self._failed: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
        """Numbers of calls that raised: asked again, it is the same sample."""

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """As `RolloutEngine.generate`; `sampling.seed` is the attempt's."""
        prompt = np.asarray(prompt_ids, np.int32)
        key = (sampling.seed, prompt_digest(prompt))
        if failed := self._failed.get(key):
            # The smallest: several that are asked again are in the same order.
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
