"""Files of stored episodes, read line by line; what a killed run left unfinished is skipped and counted."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllm_core.data.codec import SCHEMA_VERSION, episode_from_json
from rllm_core.data.types import Episode
from rllm_core.errors import RllmError
from rllm_core.files import open_to_read

if TYPE_CHECKING:
    from rllm_record.steps import PlayedEpisode

PARQUET = ".parquet"
"""Suffix of the files of a run's record (`rllm.record=tokens`)."""
GZIP = b"\x1f\x8b"
"""First bytes of a compressed file (RFC 1952)."""


class EpisodesError(RllmError):
    """Stored episodes cannot be found or read."""

    exit_code = 2


@dataclass(frozen=True)
class FileContent:
    """Content of one file."""

    rounds: list[list[Episode]]
    """The episodes of a step, by rollout batch. At least one batch."""
    skipped: int
    """Number of lines skipped because the file ends inside them: 0 or 1."""


def read_record(file: Path) -> Sequence[PlayedEpisode]:
    """Return the episodes of a file of a record.

    Raises:
        EpisodesError: the file is not a record with tokens.
    """
    from rllm_record.steps import RecordError
    from rllm_record.steps.files import read_episodes

    try:
        return read_episodes(file)
    except RecordError as error:
        raise EpisodesError(error.code, error.message, error.hint) from error


def read_file(file: Path) -> FileContent:
    """All whole episodes of a file of a record, or of a JSON Lines file, compressed or not.

    Raises:
        EpisodesError: a line before the last is no episode, the file is damaged, or another schema version wrote it.
    """
    if file.suffix == PARQUET:
        played = read_record(file)
        last = max((each.round for each in played), default=0)
        return FileContent([[each.episode for each in played if each.round == key] for key in range(last + 1)], 0)
    rounds: dict[int, list[Episode]] = defaultdict(list)
    skipped = 0
    with _opened(file) as lines:
        for number, line in enumerate(_lines(lines, file), 1):
            if line is None:
                skipped = 1
                break
            try:
                number_of_round, episode = _episode(line)
                rounds[number_of_round].append(episode)
            except EpisodesError as error:
                raise EpisodesError(error.code, f"{file}, line {number}: {error.message}", error.hint) from error
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                if not line.endswith(b"\n"):
                    skipped = 1
                    break
                raise _damaged(file, number, f"no episode ({type(error).__name__}: {error})") from error
    return FileContent([rounds[key] for key in range(max(rounds, default=0) + 1)], skipped)


@contextmanager
def _opened(file: Path) -> Iterator[BufferedIOBase]:
    with ExitStack() as opened:
        try:
            raw = opened.enter_context(open_to_read(file))
            compressed = raw.peek(len(GZIP)).startswith(GZIP)
        except OSError as error:
            raise EpisodesError(
                "file-unreadable", f"{file} cannot be read: {error.strerror}.", "Name a regular file that you may read."
            ) from error
        yield opened.enter_context(gzip.GzipFile(fileobj=raw)) if compressed else raw


def _lines(lines: BufferedIOBase, file: Path) -> Iterator[bytes | None]:
    """Yield each line. Yield None instead of the last line if the compressed stream is truncated."""
    number = 1
    while True:
        try:
            line = lines.readline()
        except EOFError:
            yield None
            return
        except (OSError, zlib.error) as error:
            raise _damaged(file, number, f"it cannot be decompressed ({error})") from error
        if not line:
            return
        yield line
        number += 1


def _episode(line: bytes) -> tuple[int, Episode]:
    """Return the number of the rollout batch (0 in older files, which do not store it) and the episode."""
    data: Any = json.loads(line)
    version = data["schema_version"]
    if version != SCHEMA_VERSION:
        raise EpisodesError(
            "schema-too-new",
            f"an episode has schema version {version}, but this rllm-core reads version {SCHEMA_VERSION}.",
            "Use the rllm-core that wrote it, or train again with this one.",
        )
    return int(data.get("round", 0)), episode_from_json(data)


def _damaged(file: Path, number: int, what: str) -> EpisodesError:
    return EpisodesError(
        "wrong-file-type",
        f"{file}, line {number}: {what}.",
        "Give a run folder or a file of episodes. If this is such a file, it is damaged: restore it, or move it away.",
    )
