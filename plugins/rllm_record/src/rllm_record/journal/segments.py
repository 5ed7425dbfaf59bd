"""`Segments`: the files of a journal, one per task batch. A file is only appended to, or deleted."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rllm_core.files import sync_directory
from rllm_record.journal.records import (
    CONFIG,
    WITHOUT,
    JournalError,
    StoredCall,
    StoredFailure,
    decode_call,
    frame_record,
    read_frames,
)

OPEN_FILES = 32
SUFFIX = ".calls"


def path_of_batch(directory: Path, batch: int) -> Path:
    """Return the file of a task batch in the directory of a journal."""
    return directory / f"{batch:06d}{SUFFIX}"


@dataclass
class _Segment:
    """State of a file that is needed to append to it."""

    path: Path
    records: int = 0
    file: int | None = None
    """File descriptor. None while the file is closed."""
    has_config: bool = False
    """True if this process has written the config's digest to the file."""
    is_synced: bool = True


class Segments:
    """The files of a run's journal, in their own directory. Appended records survive a crash of the process."""

    def __init__(self, directory: Path, config: str) -> None:
        """Read every file, and remove an incomplete last record.

        Args:
            directory: directory of the journal.
            config: digest of the run's config.

        Raises:
            JournalError: a record is damaged.
        """
        self._directory = directory
        self._config = CONFIG + config.encode()
        directory.mkdir(parents=True, exist_ok=True)
        self._segments = {int(path.stem): _open_segment(path) for path in sorted(directory.glob(f"*{SUFFIX}"))}
        # Close the files too if the run fails and its process continues.
        weakref.finalize(self, _close_all, self._segments)

    def append(self, batch: int, body: bytes) -> None:
        """Write a record of a task batch.

        Raises:
            JournalError: the record could not be written.
        """
        segment = self._segments.get(batch)
        if segment is None:
            segment = self._segments[batch] = _Segment(path_of_batch(self._directory, batch))
        if not segment.has_config:
            segment.has_config = True
            self._write(segment, self._config)
        self._write(segment, body)

    def calls(self, batch: int, up_to_version: int) -> dict[int, StoredCall | StoredFailure]:
        """Return the usable calls of a task batch by seed.

        A call is usable if the run had the same config, or if only weights up to `up_to_version` sampled it, because
        these weights are the same with any config. A failed call is returned only if no response exists.

        Raises:
            JournalError: a record is damaged.
        """
        segment, known, same = self._segments.get(batch), dict[int, StoredCall | StoredFailure](), False
        for body in [] if segment is None else read_frames(segment.path).records:
            if body.startswith(CONFIG):
                same = body == self._config
                continue
            call = decode_call(body)
            if isinstance(call, StoredFailure):
                # The same call may also have a response, before or after this record.
                known.setdefault(call.seed, call)
            elif same or call.latest_version <= up_to_version:
                known[call.seed] = call
        return known

    def counts(self, after: int) -> dict[int, int]:
        """Return the number of records of each task batch after `after`."""
        return {batch: segment.records for batch, segment in self._segments.items() if batch > after}

    def require(self, counts: Mapping[int, int]) -> None:
        """Raise JournalError if a task batch has fewer complete records than in `counts`."""
        for batch, expected in counts.items():
            path = path_of_batch(self._directory, batch)
            there = self._segments[batch].records if batch in self._segments else 0
            if there < expected:
                raise JournalError(
                    "damaged-journal",
                    f"{path} has {there} complete records, but had {expected} when the checkpoint was written.",
                    f"Copy the file back from a backup. {WITHOUT}",
                )

    def sync(self) -> None:
        """Wait until everything is on disk."""
        for segment in self._segments.values():
            if not segment.is_synced:
                os.fsync(self._descriptor(segment))
                segment.is_synced = True
        sync_directory(self._directory)

    def drop_before(self, batch: int) -> None:
        """Delete the files of earlier task batches."""
        for earlier in [each for each in self._segments if each < batch]:
            segment = self._segments.pop(earlier)
            _close(segment)
            segment.path.unlink()

    def close(self) -> None:
        """Close the files."""
        _close_all(self._segments)

    def _write(self, segment: _Segment, body: bytes) -> None:
        frame = frame_record(segment.records, body)
        try:
            written = os.write(self._descriptor(segment), frame)
        except OSError as error:
            raise _unwritable(segment.path, str(error.strerror)) from error
        if written < len(frame):
            raise _unwritable(segment.path, "there is no room")
        segment.records += 1
        segment.is_synced = False

    def _descriptor(self, segment: _Segment) -> int:
        if segment.file is None:
            open_segments = [each for each in self._segments.values() if each.file is not None]
            if len(open_segments) >= OPEN_FILES:
                _close(open_segments[0])
            segment.file = os.open(segment.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        return segment.file


def _open_segment(path: Path) -> _Segment:
    whole = read_frames(path)
    if whole.length < path.stat().st_size:
        os.truncate(path, whole.length)
    return _Segment(path, len(whole.records))


def _close_all(segments: Mapping[int, _Segment]) -> None:
    for segment in segments.values():
        _close(segment)


def _close(segment: _Segment) -> None:
    if segment.file is not None:
        os.close(segment.file)
        segment.file = None


def _unwritable(path: Path, reason: str) -> JournalError:
    return JournalError(
        "not-writable",
        f"The journal {path} cannot be written: {reason}.",
        "Free disk space or correct the permissions, then continue from the latest checkpoint with --resume.",
    )
