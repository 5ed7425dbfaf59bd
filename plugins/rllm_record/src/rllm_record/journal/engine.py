"""JournalEngine: keeps what it is answered, and answers what it has kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, EngineWrapper, RolloutEngine, SamplingParams
from rllm_core.errors import RolloutError
from rllm_record.journal.errors import WITHOUT, JournalError
from rllm_record.journal.records import KeptCall, KeptFailure, checksum_of_call, encoded, encoded_failure
from rllm_record.journal.segments import Segments


class JournalEngine(EngineWrapper):
    """Keeps calls in front of another engine, and answers from what is kept.

    A call of a training round is kept before it is answered. Its seed says which call it is: it follows from the run,
    the round, the attempt, the prompt and its sibling number.
    """

    def __init__(self, engine: RolloutEngine) -> None:
        super().__init__(engine)
        self._segments: Segments | None = None
        self._known: dict[int, dict[int, KeptCall | KeptFailure]] = {}
        self._first_version = 0

    def open(self, segments: Segments, first_version: int) -> None:
        """Keep calls in `segments`, and answer what they hold; weights before `first_version` are gone."""
        self._segments, self._first_version = segments, first_version

    def forget(self, round: int) -> None:
        """The round has been played: nothing of it is asked again."""
        self._known.pop(round, None)

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """As `RolloutEngine.generate`.

        Raises:
            JournalError: the call cannot be kept, or weights that are gone would have to answer it.
        """
        if sampling.round is None or self._segments is None:
            return await self.inner.generate(prompt_ids, sampling, session=session)
        prompt = np.asarray(prompt_ids, np.int32)
        asked = checksum_of_call(prompt, sampling)
        kept = self._known_calls(sampling.round, self._segments).get(sampling.seed)
        known = kept if kept is not None and kept.asked == asked else None
        if isinstance(known, KeptCall):
            return known.completion
        if sampling.weight_version is not None and sampling.weight_version < self._first_version:
            if known is not None:
                await fail_again(known)
            raise JournalError(
                "journal-mismatch",
                f"Version {sampling.weight_version} of the weights is gone, and the journal has no reply of it to this "
                f"prompt in {session!r} of round {sampling.round}.",
                f"The environment or the workflow has changed, or plays otherwise each time. {WITHOUT}",
            )
        try:
            completion = await self.inner.generate(prompt, sampling, session=session)
        except (Exception, asyncio.CancelledError) as error:
            self._segments.append(sampling.round, encoded_failure(sampling.seed, asked, error))
            raise
        self._segments.append(sampling.round, encoded(sampling.seed, asked, completion))
        return completion

    def _known_calls(self, round: int, segments: Segments) -> dict[int, KeptCall | KeptFailure]:
        """Read once, before anything of this start is written: calls have seeds of their own."""
        known = self._known.get(round)
        if known is None:
            known = self._known[round] = segments.calls(round, self._first_version)
        return known


async def fail_again(failure: KeptFailure) -> NoReturn:
    """End as the call did: with the error, or not before whoever asks goes away.

    Raises:
        RolloutError: the engine raised an error.
    """
    if failure.error is None:
        await asyncio.Event().wait()
    raise RolloutError("rollout-failed", failure.error or "The call was given up.")
