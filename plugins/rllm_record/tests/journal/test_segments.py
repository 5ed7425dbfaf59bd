"""The journal: its files, and its responses with and without a stored call."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import virtual_time
from expecting import expect_error

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.data.version_spans import VersionSpan
from rllm_core.errors import RolloutError
from rllm_record.journal.engine import JournalEngine
from rllm_record.journal.records import (
    JournalError,
    StoredCall,
    checksum_of_call,
    decode_call,
    encode_call,
    read_frames,
)
from rllm_record.journal.segments import OPEN_FILES, Segments

PROMPT = np.array([3, 1, 4], np.int32)
SAMPLING = SamplingParams(max_tokens=8, seed=7, task_batch=2)


def completion(version: int = 5, tokens: int = 3) -> Completion:
    logprobs = np.array([-0.1, np.nan, -1e-38], np.float32)[:tokens]
    return Completion(
        token_ids=np.arange(tokens, dtype=np.int32), logprobs=logprobs, finish_reason="stop", weight_version=version
    )


def body(seed: int, version: int = 5) -> bytes:
    return encode_call(seed, checksum_of_call(PROMPT, SAMPLING), completion(version))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def segment_file(directory: Path) -> Path:
    """A file with the record of a config and two calls of a batch."""
    segments = Segments(directory, "a")
    segments.append(2, body(1))
    segments.append(2, body(2))
    segments.close()
    return directory / "000002.calls"


TWO_VERSIONS = Completion(
    token_ids=np.array([2**31 - 1, 0], np.int32),
    logprobs=np.array([-np.inf, 0.0], np.float32),
    finish_reason="length",
    weight_version=3,
    version_spans=(VersionSpan(4, 1), VersionSpan(3, 1)),
)


@pytest.mark.parametrize(
    ("made", "latest"), [(completion(), 5), (completion(tokens=0), 5), (TWO_VERSIONS, 4)], ids=["nan", "empty", "two"]
)
def test_stored_call_is_read_unchanged(made: Completion, latest: int) -> None:
    call = decode_call(encode_call(2**63 - 1, 2**32 - 1, made))
    assert isinstance(call, StoredCall)
    assert (call.seed, call.asked, call.latest_version) == (2**63 - 1, 2**32 - 1, latest)
    for name, dtype in (("token_ids", np.int32), ("logprobs", np.float32)):
        read, written = getattr(call.completion, name), getattr(made, name)
        assert (read.tobytes(), read.dtype) == (written.tobytes(), dtype)
    assert call.completion.finish_reason == made.finish_reason
    assert call.completion.version_spans == made.version_spans


@pytest.mark.parametrize(
    "changed", [{"max_tokens": 9}, {"temperature": 0.5}, {"stop": ("x",)}, {"weight_version": 0}], ids=str
)
def test_different_sampling_is_a_different_call(changed: dict[str, Any]) -> None:
    other = SamplingParams(**{"max_tokens": 8, **changed})
    assert checksum_of_call(PROMPT, other) != checksum_of_call(PROMPT, SAMPLING)
    assert checksum_of_call(PROMPT[:2], SAMPLING) != checksum_of_call(PROMPT, SAMPLING)


def test_calls_are_found_by_batch_seed_and_config(segment_file: Path, directory: Path) -> None:
    """Calls of a different config apply up to a version."""
    same = Segments(directory, "a")
    assert same.calls(2, 0).keys() == {1, 2}
    assert same.calls(3, 0) == {}
    segments = Segments(directory, "b")
    segments.append(2, body(3, version=9))
    segments.append(2, body(4, version=4))
    assert segments.calls(2, 4).keys() == {3, 4}
    assert segments.calls(2, 5).keys() == {1, 2, 3, 4}
    assert Segments(directory, "a").calls(2, 4).keys() == {1, 2, 4}


def test_truncated_file_has_the_earlier_records(segment_file: Path, directory: Path) -> None:
    content, ends = segment_file.read_bytes(), [0, *_ends(segment_file)]
    assert len(ends) - 1 == 3
    for length in range(len(content) + 1):
        segment_file.write_bytes(content[:length])
        whole = read_frames(segment_file)
        complete = [end for end in ends if end <= length]
        assert (len(whole.records), whole.length) == (len(complete) - 1, complete[-1])


def test_records_after_a_cut_are_read_again(segment_file: Path, directory: Path) -> None:
    segment_file.write_bytes(segment_file.read_bytes()[:-5])
    segments = Segments(directory, "a")
    segments.append(2, body(8))
    segments.close()
    assert Segments(directory, "a").calls(2, 0).keys() == {1, 8}


def test_flipped_bit_error_has_the_record_number(segment_file: Path) -> None:
    content = segment_file.read_bytes()
    ends = _ends(segment_file)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        segment_file.write_bytes(changed)
        number = next(number for number, end in enumerate(ends) if place < end)
        with expect_error(JournalError, "damaged-journal", f"Record {number} ", "000002.calls"):
            read_frames(segment_file)


def test_missing_record_is_damage(segment_file: Path) -> None:
    content, ends = segment_file.read_bytes(), _ends(segment_file)
    segment_file.write_bytes(content[: ends[0]] + content[ends[1] :])
    with expect_error(JournalError, "damaged-journal", "Record 1 of"):
        read_frames(segment_file)


def test_fewer_records_than_counted_are_rejected(segment_file: Path, directory: Path) -> None:
    segments = Segments(directory, "a")
    counts = segments.counts(after=1)
    assert counts == {2: 3}
    segments.require(counts)
    with expect_error(JournalError, "damaged-journal", " 3 ", " 4"):
        segments.require({2: 4})
    with expect_error(JournalError, "damaged-journal", "000009.calls", " 0 "):
        segments.require({9: 1})


def test_earlier_batches_are_dropped(segment_file: Path, directory: Path) -> None:
    segments = Segments(directory, "a")
    segments.append(3, body(1))
    segments.drop_before(3)
    assert [path.name for path in directory.iterdir()] == ["000003.calls"]
    assert segments.counts(after=-1) == {3: 2}


def test_more_batches_are_written_than_open_files(directory: Path) -> None:
    segments = Segments(directory, "a")
    for turn in range(2):
        for batch in range(OPEN_FILES + 5):
            segments.append(batch, body(turn))
    segments.sync()
    segments.close()
    assert set(Segments(directory, "a").counts(after=-1).values()) == {3}


def test_unwritable_directory_stops_the_run(directory: Path) -> None:
    segments = Segments(directory, "a")
    directory.rmdir()
    with expect_error(JournalError, "not-writable"):
        segments.append(0, body(1))


def _ends(path: Path) -> list[int]:
    """Return the end of each record."""
    content, ends = path.read_bytes(), list[int]()
    for length in range(1, len(content) + 1):
        path.write_bytes(content[:length])
        if (end := read_frames(path).length) and end not in ends:
            ends.append(end)
    path.write_bytes(content)
    return ends


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
