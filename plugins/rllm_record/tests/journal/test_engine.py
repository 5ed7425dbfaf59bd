"""Responses of the journal, with and without a stored call, and with and without the weights."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import virtual_time
from expecting import expect_error

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.errors import RolloutError
from rllm_record.journal.engine import JournalEngine
from rllm_record.journal.records import JournalError
from rllm_record.journal.segments import Segments


class Engine:
    """An engine that counts its calls. It can raise an error or never answer."""

    renderer: Any = None
    max_context = 9

    def __init__(self, error: Exception | None = None, silent: bool = False) -> None:
        self.asked = 0
        self._error, self._silent = error, silent

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        self.asked += 1
        if self._silent:
            await asyncio.Event().wait()
        if self._error is not None:
            raise self._error
        ids, logprobs = np.array([self.asked], np.int32), np.array([-1], np.float32)
        return Completion(token_ids=ids, logprobs=logprobs, finish_reason="stop", weight_version=3)

    async def end_session(self, session: str) -> None:
        pass


def call(seed: int = 1, batch: int | None = 0) -> SamplingParams:
    return SamplingParams(max_tokens=4, seed=seed, task_batch=batch, weight_version=3)


def ask(engine: Engine, directory: Path, *calls: SamplingParams, first_version: int = 0, prompt: int = 5) -> list[int]:
    """Return the tokens of the responses after a start of the run."""

    async def start() -> list[int]:
        journal, segments = JournalEngine(engine), Segments(directory, "a")
        journal.open(segments, first_version)
        try:
            async with asyncio.timeout(60):
                return [int((await journal.generate([prompt], each, session="s")).token_ids[0]) for each in calls]
        finally:
            segments.close()

    return virtual_time.run(start())


def test_stored_call_is_answered_without_the_engine(tmp_path: Path) -> None:
    ask(Engine(), tmp_path, call(batch=None))
    assert list(tmp_path.iterdir()) == []  # Calls outside of batches are not stored.
    assert ask(Engine(), tmp_path, call(1), call(2)) == [1, 2]
    again = Engine()
    assert ask(again, tmp_path, call(2), call(1), first_version=9) == [2, 1]
    assert again.asked == 0
    ask(again, tmp_path, call(), prompt=6)
    assert again.asked == 1


def test_missing_call_is_rejected_if_weights_are_gone(tmp_path: Path) -> None:
    again = Engine()
    with expect_error(JournalError, "journal-mismatch", 3):
        ask(again, tmp_path, call(), first_version=4)
    assert again.asked == 0


def test_failed_call_fails_again_if_weights_are_gone(tmp_path: Path) -> None:
    with expect_error(RolloutError, "made-up"):
        ask(Engine(RolloutError("made-up", "the prompt is too long")), tmp_path, call())
    with expect_error(RolloutError, "rollout-failed"):
        ask(Engine(), tmp_path, call(), first_version=4)


def test_cancelled_call_stays_unanswered_if_weights_are_gone(tmp_path: Path) -> None:
    again = Engine()
    for engine, first_version in ((Engine(silent=True), 0), (again, 4)):
        with pytest.raises(TimeoutError):
            ask(engine, tmp_path, call(), first_version=first_version)
    assert again.asked == 0


@pytest.mark.parametrize(
    "before", [Engine(RolloutError("made-up", "no")), Engine(silent=True)], ids=["failed", "given up"]
)
def test_unanswered_call_is_sampled_if_weights_are_available(tmp_path: Path, before: Engine) -> None:
    with pytest.raises((RolloutError, TimeoutError)):
        ask(before, tmp_path, call())
    assert ask(Engine(), tmp_path, call()) == [1]
    assert ask(Engine(silent=True), tmp_path, call(), first_version=4) == [1]
