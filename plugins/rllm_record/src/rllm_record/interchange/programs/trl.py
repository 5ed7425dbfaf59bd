"""Completions of TRL (``log_completions``): a prompt, a completion and its rewards per row. This format is only read.

A file contains the completions of one step, and neither tokens nor log-probs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rllm_core.notices import warn_once
from rllm_record.interchange.drafts import EpisodeDraft, JsonData, make_episodes
from rllm_record.interchange.formats import EpisodeFormat
from rllm_record.interchange.rows import PromptNames, is_number, row_draft, step_files
from rllm_record.steps.rows import RecordedEpisode

COMPLETIONS = "completions_*.parquet"
COLUMNS = frozenset({"step", "prompt", "completion", "advantage"})


def is_trl(path: Path) -> bool:
    """True if this is a file of completions of TRL, or a directory of such files."""
    import pyarrow.parquet as pq

    files = step_files(path, COMPLETIONS)
    return bool(files) and files[0].match(COMPLETIONS) and set(pq.read_schema(files[0]).names) >= COLUMNS


def read(path: Path) -> Iterator[RecordedEpisode]:
    """Yield an episode for each completion. The reward is the sum of all columns with numbers that are not NaN.

    TRL writes the columns of ``log_extra`` after the rewards, without a mark. So a warning lists the columns.
    """
    files = step_files(path, COMPLETIONS)
    if summed := dict.fromkeys(name for file in files for name in _number_columns(file)):
        warn_once(
            f"{path}: the reward is the sum of the columns {', '.join(summed)}. The file contains no weights. If a "
            "column comes from log_extra, remove it from the file."
        )
    yield from make_episodes(_drafts(files))


def _number_columns(file: Path) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for column in pq.read_schema(file):
        if column.name not in COLUMNS and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            yield column.name


def _drafts(files: list[Path]) -> Iterator[EpisodeDraft]:
    import pyarrow.parquet as pq

    names = PromptNames()
    for file in files:
        with pq.ParquetFile(file) as opened:
            for batch in opened.iter_batches(batch_size=64):
                yield from (_draft(row, names) for row in batch.to_pylist())


def _draft(row: JsonData, names: PromptNames) -> EpisodeDraft:
    others = {key: value for key, value in row.items() if key not in COLUMNS}
    rewards = {key: float(value) for key, value in others.items() if is_number(value) and value == value}
    extra = {key: value for key, value in others.items() if key not in rewards}
    prompt, completion = _without_nulls(row["prompt"]), _without_nulls(row["completion"])
    draft = row_draft(row["step"], prompt, completion, rewards, extra, names)
    for step in draft.trajectories[0].steps:
        step.fields |= {"advantage": row["advantage"]} if is_number(row["advantage"]) else {}
    return draft


def _without_nulls(value: Any) -> Any:
    """Return a value without null fields, because an object of Parquet has the keys of all objects in its column."""
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return value


FORMAT = EpisodeFormat(name="trl", title="completions of TRL", recognizes=is_trl, read=read)
