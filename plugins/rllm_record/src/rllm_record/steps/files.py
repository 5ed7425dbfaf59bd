"""StepFiles: the files of a record, each written beside its place and renamed, with the version of its schema."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rllm_core.files import sync_file
from rllm_record.steps import tables
from rllm_record.steps.errors import RecordError
from rllm_record.steps.rows import PlayedEpisode, RecordedFate

VERSION = 1
"""Of the tables. Later ones add columns: what is of an older one is read as it is."""
VERSION_KEY, CONTENT_KEY = b"rllm.record.version", b"rllm.record.content"
FOLDER = "record"
"""Of a record in a run folder."""


class StepFiles:
    """The record in a folder: ``episodes/step_000012.parquet`` and ``fates/step_000012.parquet`` are of step 12.

    The fates of a step are written last: a step with fates is whole.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def steps(self) -> list[int]:
        """Steps that are recorded, in order."""
        names = (file.stem.removeprefix("step_") for file in (self._folder / "fates").glob("step_*.parquet"))
        return sorted(int(name) for name in names if name.isdecimal())

    def write(
        self, step: int, episodes: Sequence[PlayedEpisode], fates: Sequence[RecordedFate], content: tables.Content
    ) -> None:
        """Record a step, in place of an earlier record of it.

        Args:
            content: what is kept of the episodes.

        Raises:
            RecordError: the files cannot be written.
        """
        try:
            self._place("fates", step).unlink(missing_ok=True)
            self._write("episodes", step, tables.EPISODES, tables.episode_rows(episodes, content), content)
            self._write("fates", step, tables.FATES, tables.fate_rows(fates), content)
        except (OSError, pa.ArrowException) as error:
            raise RecordError(
                f"Step {step} cannot be recorded in {self._folder}: {error}.",
                "Make room, or fix the permissions of the folder.",
            ) from error

    def episodes(self, step: int) -> list[PlayedEpisode]:
        """The episodes of a step, as they were played.

        Raises:
            RecordError: they are not recorded, were recorded without tokens, or cannot be read.
        """
        return read_episodes(self._place("episodes", step))

    def fates(self, step: int) -> list[RecordedFate]:
        """What became of each trajectory in a step.

        Raises:
            RecordError: it is not recorded, or cannot be read.
        """
        return [tables.recorded_fate(row) for row in self.fate_table(step).to_pylist()]

    def episode_table(self, step: int) -> pa.Table:
        """The columns of `tables.EPISODES`; texts and tokens that are not recorded are null. Raises as `fates`."""
        return self._read("episodes", step, tables.EPISODES)

    def fate_table(self, step: int) -> pa.Table:
        """The columns of `tables.FATES`. Raises as `fates`."""
        return self._read("fates", step, tables.FATES)

    def forget_from(self, step: int) -> None:
        """Remove the record of a step and of those after it, which are made again."""
        for kind in ("fates", "episodes"):
            for file in (self._folder / kind).glob("step_*.parquet"):
                if int(file.stem.removeprefix("step_")) >= step:
                    file.unlink()

    def _place(self, kind: str, step: int) -> Path:
        return self._folder / kind / f"step_{step:06d}.parquet"

    def _write(self, kind: str, step: int, schema: pa.Schema, rows: list[dict[str, Any]], content: str) -> None:
        place = self._place(kind, step)
        place.parent.mkdir(parents=True, exist_ok=True)
        marks = {VERSION_KEY: str(VERSION), CONTENT_KEY: content}
        beside = place.with_name(f".{place.name}.{os.getpid()}.tmp")
        try:
            table = pa.Table.from_pylist(rows, schema.with_metadata(marks))
            # Dictionaries of values make files of a few hundred rows larger, and slower to write.
            pq.write_table(table, beside, compression="zstd", use_dictionary=False)
            sync_file(beside)
            beside.replace(place)
        finally:
            beside.unlink(missing_ok=True)

    def _read(self, kind: str, step: int, schema: pa.Schema) -> pa.Table:
        return _read_table(self._place(kind, step), schema)


def read_episodes(file: Path) -> list[PlayedEpisode]:
    """The episodes of one file of a record, as they were played.

    Raises:
        RecordError: it was recorded without tokens, is no such file, or cannot be read.
    """
    table = _read_table(file, tables.EPISODES)
    if table["trajectories"].null_count:
        raise RecordError(f"{file} holds no episodes.", "Restore the file from a copy.")
    return [tables.played_episode(row) for row in table.to_pylist()]


def holds_tokens(file: Path) -> bool:
    """Whether a file of episodes was recorded with texts and tokens; False where it cannot be read."""
    try:
        return (pq.read_schema(file).metadata or {}).get(CONTENT_KEY) == b"tokens"
    except (OSError, pa.ArrowException):
        return False


def _read_table(place: Path, schema: pa.Schema) -> pa.Table:
    try:
        # One file, not a data set: a column of its own must not be looked for in the path.
        with pq.ParquetFile(place) as file:
            table = file.read()
    except FileNotFoundError as error:
        raise RecordError(
            f"There is no record at {place}.", "A run keeps one with rllm.record=fates or rllm.record=tokens."
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise RecordError(f"{place} cannot be read: {error}.", "Restore it from a copy.") from error
    version = (table.schema.metadata or {}).get(VERSION_KEY, b"").decode()
    if not version.isdecimal():
        raise RecordError(f"{place} is not a record of a step.", "Name a file below record/ of a run folder.")
    if int(version) > VERSION:
        raise RecordError(
            f"{place} has schema {version}; this rllm-record knows {VERSION}.", "Install a newer rllm-record."
        )
    return _with_all_columns(table, schema)


def _with_all_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """What an older schema did not have is null."""
    columns = [
        table[field.name] if field.name in table.column_names else pa.nulls(len(table), field.type) for field in schema
    ]
    return pa.table(columns, names=schema.names)
