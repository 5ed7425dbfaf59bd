"""Search in the text of rollouts: their tasks, the messages to the model, and its replies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rllm_core.errors import ConfigError
from rllm_record.steps import RecordError, require_known_version
from rllm_record.steps.errors import unreadable
from rllm_view.reading.record_files import files_of

LONGEST = 1000
"""Characters of a phrase."""
MOST_FOUND = 2000
"""Trajectories of one search: after the step that exceeds it, no earlier step is read."""
MOST_BYTES = 64 * 2**20
"""Size of the files that one search reads."""
_TURN = "trajectories.list.element.steps.list.element"
_LEAVES = [
    "task",
    "trajectories.list.element.uid",
    f"{_TURN}.text",
    f"{_TURN}.messages.list.element.text",
    f"{_TURN}.messages.list.element.data",
]


@dataclass(frozen=True, kw_only=True)
class Search:
    """The result of one search."""

    uids: Sequence[str]
    """Trajectories whose text contains the phrase."""
    steps: int
    """Number of steps that were read."""
    earlier: int | None
    """Newest step that was not read, because of the bounds; None: all were read."""


def search_text(record: Path, phrase: str, steps: Sequence[int]) -> Search:
    """Search for a phrase in upper or lower case, in `steps` one after the other, within the bounds.

    Args:
        record: directory of the record.
        phrase: text to find, not a pattern.
        steps: steps in which the trajectories were played.

    Raises:
        ConfigError: the phrase is too long.
    """
    if len(phrase) > LONGEST:
        raise ConfigError(
            "bad-query", f"The phrase has {len(phrase)} characters.", f"Search for at most {LONGEST} characters."
        )
    files = files_of(record, "episodes")
    uids: list[str] = []
    size = 0
    for count, step in enumerate(steps):
        if len(uids) >= MOST_FOUND or size >= MOST_BYTES:
            return Search(uids=uids, steps=count, earlier=step)
        if step in files:
            try:
                size += files[step].stat().st_size
                uids += _uids_with(files[step], phrase)
            except (RecordError, OSError):
                # The page of the run reports files that cannot be read.
                continue
    return Search(uids=uids, steps=len(steps), earlier=None)


def _uids_with(file: Path, phrase: str) -> list[str]:
    try:
        with pq.ParquetFile(file) as opened:
            require_known_version(file, opened.schema_arrow.metadata)
            table = opened.read(columns=_LEAVES)
    except (OSError, pa.ArrowException) as error:
        raise unreadable(file, error) from error
    trajectories, of_episode = _flat(table["trajectories"].combine_chunks())
    turns, of_trajectory = _flat(trajectories.field("steps"))
    messages, of_turn = _flat(turns.field("messages"))
    in_turns = _has(turns.field("text"), phrase)
    in_json = json.dumps(phrase)[1:-1]
    in_messages = _has(messages.field("text"), phrase) | _has(messages.field("data"), in_json)
    in_turns[of_turn[in_messages]] = True
    found = _has(table["task"], in_json)[of_episode]
    found[of_trajectory[in_turns]] = True
    uids: list[str] = trajectories.field("uid").filter(pa.array(found)).to_pylist()
    return uids


def _flat(lists: Any) -> tuple[Any, np.ndarray[Any, Any]]:
    """Elements of all lists, and for each the position of its list."""
    return lists.flatten(), pc.list_parent_indices(lists).to_numpy()


def _has(texts: Any, phrase: str) -> np.ndarray[Any, Any]:
    found = pc.fill_null(pc.match_substring(texts, phrase, ignore_case=True), False)
    return np.array(found.to_pylist(), bool)
