"""`JournalEngine`: store the responses of an engine, and return stored responses without sampling."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, EngineWrapper, RolloutEngine, SamplingParams
from rllm_core.errors import RolloutError
from rllm_record.journal.records import (
    WITHOUT,
    JournalError,
    StoredCall,
    StoredFailure,
    checksum_of_call,
    encode_call,
    encode_failure,
)
from rllm_record.journal.segments import Segments


class JournalEngine(EngineWrapper):
    """Wraps an engine, stores its responses, and returns stored responses.

    The response of a training call is stored before it is returned. The seed identifies the call, because it depends
    on the run, the task batch, the rollout, the prompt and the sibling number.
    """

    def __init__(self, engine: RolloutEngine) -> None:
        super().__init__(engine)
        self._segments: Segments | None = None
        self._known: dict[int, dict[int, StoredCall | StoredFailure]] = {}
        self._first_version = 0

    def open(self, segments: Segments, first_version: int) -> None:
        """Store calls in `segments`, and answer from them. Weights before `first_version` are not available."""
        self._segments, self._first_version = segments, first_version

    def forget(self, batch: int) -> None:
        """Drop the calls of a task batch from memory after its rollouts have finished."""
        self._known.pop(batch, None)

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """Return the stored response, or sample one. See `RolloutEngine.generate`.

        Raises:
            JournalError: the call cannot be stored, or it needs weights that are not available any more.
        """
        if sampling.task_batch is None or self._segments is None:
            return await self.inner.generate(prompt_ids, sampling, session=session)
        prompt = np.asarray(prompt_ids, np.int32)
        asked = checksum_of_call(prompt, sampling)
        kept = self._known_calls(sampling.task_batch, self._segments).get(sampling.seed)
        known = kept if kept is not None and kept.asked == asked else None
        if isinstance(known, StoredCall):
            return known.completion
        if sampling.weight_version is not None and sampling.weight_version < self._first_version:
            if known is not None:
                await fail_again(known)
            raise JournalError(
                "journal-mismatch",
                f"The prompt in {session!r} of batch {sampling.task_batch} needs weight version "
                f"{sampling.weight_version}. These weights are gone, and the journal has no response.",
                f"The environment or the workflow has changed, or is not deterministic. {WITHOUT}",
            )
        try:
            completion = await self.inner.generate(prompt, sampling, session=session)
        except (Exception, asyncio.CancelledError) as error:
            self._segments.append(sampling.task_batch, encode_failure(sampling.seed, asked, error))
            raise
        self._segments.append(sampling.task_batch, encode_call(sampling.seed, asked, completion))
        return completion

    def _known_calls(self, batch: int, segments: Segments) -> dict[int, StoredCall | StoredFailure]:
        """Return the stored calls of a task batch. They are read once, before new calls of this batch are written."""
        known = self._known.get(batch)
        if known is None:
            known = self._known[batch] = segments.calls(batch, self._first_version)
        return known


async def fail_again(failure: StoredFailure) -> NoReturn:
    """Repeat a failure: raise the stored error, or wait until the caller cancels the call.

    Raises:
        RolloutError: the engine had raised an error.
    """
    if failure.error is None:
        await asyncio.Event().wait()
    raise RolloutError("rollout-failed", failure.error or "The call failed.")
