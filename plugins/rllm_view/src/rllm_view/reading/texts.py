"""The text of trajectories: a search for a phrase, and previews for tables."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rllm_core.errors import ConfigError
from rllm_core.notices import one_line
from rllm_record.steps import RecordError
from rllm_record.steps.files import step_files
from rllm_record.steps.parquet import read_columns

LONGEST = 1000
"""Maximum number of characters of a phrase."""
MOST_FOUND = 2000
"""Maximum number of trajectories of one search. After the step that exceeds it, no earlier step is read."""
MOST_BYTES = 64 * 2**20
"""Maximum size of the files that one search reads."""
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
    """Latest step that was not read, because of the bounds. None if all steps were read."""


def search_text(record: Path, phrase: str, steps: Sequence[int]) -> Search:
    """Search for a phrase in upper or lower case, in `steps` one after the other, within the bounds.

    Args:
        record: directory of the record.
        phrase: text to find, not a pattern.
        steps: steps in which the trajectories were generated.

    Raises:
        ConfigError: the phrase is too long.
    """
    if len(phrase) > LONGEST:
        raise ConfigError(
            "bad-query", f"The phrase has {len(phrase)} characters.", f"Search for at most {LONGEST} characters."
        )
    files = step_files(record / "episodes")
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
    table = read_columns(file, _LEAVES)
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


PREVIEW = 120
"""Maximum number of characters of a preview."""


@dataclass(frozen=True, kw_only=True)
class Preview:
    """The start of a prompt and of a response, each in one line. None: not recorded."""

    prompt: str | None
    """The last message before the first response."""
    response: str | None
    """The last response of the trajectory."""


def read_previews(record: Path, places: Iterable[tuple[int, str]]) -> dict[str, Preview]:
    """Return previews by uid. Trajectories are missing if their text is not recorded or unreadable, or after
    `MOST_BYTES`.

    Args:
        record: directory of the record.
        places: the step in which each trajectory was generated, and its uid.
    """
    by_step: dict[int, list[str]] = defaultdict(list)
    for step, uid in places:
        by_step[step].append(uid)
    files = step_files(record / "episodes")
    found: dict[str, Preview] = {}
    size = 0
    for step, uids in by_step.items():
        if step not in files or size >= MOST_BYTES:
            continue
        try:
            size += files[step].stat().st_size
            trajectories, _ = _flat(read_columns(files[step], _LEAVES)["trajectories"].combine_chunks())
        except (RecordError, OSError):
            # The page of the run reports files that cannot be read.
            continue
        chosen = trajectories.filter(pc.is_in(trajectories.field("uid"), pa.array(uids)))
        found |= {row["uid"]: _preview(row["steps"]) for row in chosen.to_pylist() if row["steps"]}
    return found


def _preview(turns: Sequence[Mapping[str, Any]]) -> Preview:
    messages, response = turns[0]["messages"], turns[-1]["text"]
    prompt = messages[-1]["text"] if messages else None
    return Preview(prompt=_start(prompt), response=_start(response))


def _start(text: str | None) -> str | None:
    # Only the start is split, because a text may have megabytes.
    return None if text is None else one_line(text[: 4 * PREVIEW], PREVIEW)


def _flat(lists: Any) -> tuple[Any, np.ndarray[Any, Any]]:
    """Return the elements of all lists, and the position of each element's list."""
    return lists.flatten(), pc.list_parent_indices(lists).to_numpy()


def _has(texts: Any, phrase: str) -> np.ndarray[Any, Any]:
    found = pc.fill_null(pc.match_substring(texts, phrase, ignore_case=True), False)
    return np.array(found.to_pylist(), bool)
