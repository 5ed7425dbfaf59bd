"""Segments: the files of a journal, one per round, which only grow and are dropped whole."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rllm_core.files import sync_directory
from rllm_record.journal.errors import WITHOUT, JournalError
from rllm_record.journal.frames import framed, read_frames
from rllm_record.journal.records import CONFIG, KeptCall, KeptFailure, decoded

OPEN_FILES = 32
SUFFIX = ".calls"


def path_of_round(directory: Path, round: int) -> Path:
    """The file of a round in the folder of a journal."""
    return directory / f"{round:06d}{SUFFIX}"


@dataclass
class _Segment:
    """What is known of a file without reading it."""

    path: Path
    records: int = 0
    file: int | None = None
    """Its descriptor while it is open."""
    has_config: bool = False
    """Whether this start has written which configuration follows."""
    is_synced: bool = True


class Segments:
    """The journal of a run, in a folder of its own. What `append` has written survives the process."""

    def __init__(self, directory: Path, config: str) -> None:
        """`config`: digest of the run's configuration. Reads every file; one that was cut off loses its last record,
        which is no whole one.

        Raises:
            JournalError: a record is not what was written.
        """
        self._directory = directory
        self._config = CONFIG + config.encode()
        directory.mkdir(parents=True, exist_ok=True)
        self._segments = {int(path.stem): _found(path) for path in sorted(directory.glob(f"*{SUFFIX}"))}
        # Of a run that ends with an error in a process that goes on.
        weakref.finalize(self, _close_all, self._segments)

    def append(self, round: int, body: bytes) -> None:
        """Write a record of a round.

        Raises:
            JournalError: it could not be written.
        """
        segment = self._segments.get(round)
        if segment is None:
            segment = self._segments[round] = _Segment(path_of_round(self._directory, round))
        if not segment.has_config:
            segment.has_config = True
            self._write(segment, self._config)
        self._write(segment, body)

    def calls(self, round: int, up_to_version: int) -> dict[int, KeptCall | KeptFailure]:
        """Calls of a round by seed: those of this configuration, and those that weights up to a version sampled, which
        are the same under each. Calls that ended with an error only where there is no answer.

        Raises:
            JournalError: a record is not what was written.
        """
        segment, known, same = self._segments.get(round), dict[int, KeptCall | KeptFailure](), False
        for body in [] if segment is None else read_frames(segment.path).records:
            if body.startswith(CONFIG):
                same = body == self._config
                continue
            call = decoded(body)
            if isinstance(call, KeptFailure):
                # Asked again, a call may have been answered before or after.
                known.setdefault(call.seed, call)
            elif same or call.latest_version <= up_to_version:
                known[call.seed] = call
        return known

    def counts(self, after: int) -> dict[int, int]:
        """How many records there are of each round behind `after`."""
        return {round: segment.records for round, segment in self._segments.items() if round > after}

    def require(self, counts: Mapping[int, int]) -> None:
        """Raise JournalError where a round has fewer whole records than that."""
        for round, expected in counts.items():
            path = path_of_round(self._directory, round)
            there = self._segments[round].records if round in self._segments else 0
            if there < expected:
                raise JournalError(
                    "damaged-journal",
                    f"{path} has {there} whole records, and the checkpoint was written when there were {expected}.",
                    f"Copy the file back from a backup. {WITHOUT}",
                )

    def sync(self) -> None:
        """Wait until everything is on disk."""
        for segment in self._segments.values():
            if not segment.is_synced:
                os.fsync(self._descriptor(segment))
                segment.is_synced = True
        sync_directory(self._directory)

    def drop_before(self, round: int) -> None:
        """Remove the files of earlier rounds."""
        for earlier in [each for each in self._segments if each < round]:
            segment = self._segments.pop(earlier)
            _close(segment)
            segment.path.unlink()

    def close(self) -> None:
        """Close the files."""
        _close_all(self._segments)

    def _write(self, segment: _Segment, body: bytes) -> None:
        frame = framed(segment.records, body)
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
            held = [each for each in self._segments.values() if each.file is not None]
            if len(held) >= OPEN_FILES:
                _close(held[0])
            segment.file = os.open(segment.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        return segment.file


def _found(path: Path) -> _Segment:
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
        "Free disk space or correct the permissions, then continue from the newest checkpoint with --resume.",
    )
