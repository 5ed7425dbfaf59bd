"""`StepFiles`: the files of a record, by kind and step."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from rllm_record.steps import schemas, tables
from rllm_record.steps.parquet import RecordError, encode_table, read_marks, read_rows, read_table, write_file
from rllm_record.steps.rows import RecordedEpisode, RecordedOutcome, RecordedUpdate, Sampler
from rllm_record.steps.tables import episode_table, outcome_table
from rllm_record.steps.traces import fill_traces, trace_table

CONTENT_KEY = b"rllm.record.content"
OBJECTIVE_KEY = b"rllm.record.objective"
KINDS = {
    "episodes": schemas.EPISODES,
    "vocabulary": schemas.VOCABULARY,
    "traces": schemas.TRACES,
    "updates": schemas.UPDATES,
    "outcomes": schemas.OUTCOMES,
}
"""Directories of a record, in the order in which the files of a step are written."""
TOKENIZER_KEY, TEMPERATURE_KEY = b"rllm.record.tokenizer", b"rllm.record.temperature"
StepTables = Mapping[str, tuple[pa.Table, Mapping[bytes, str]]]
"""Table and marks of each file of a step by its kind, in the order in which they are written."""
STEP_FILE = re.compile(r"step_([0-9]+)\.parquet")
DIRECTORY = "record"
"""Name of the record's directory in a run directory."""
DIGESTS_KEY = b"rllm.record.digests"
"""Metadata of the file with the outcomes: the digests of a step's files, its own digest included."""
LAST_KIND = "outcomes"
"""The kind of the file with the digests. It is written last."""
BLANK_DIGEST = "0" * 32
"""Replaces the file's own digest while it is computed."""


class StepFiles:
    """The record in a directory. For example, ``episodes/step_000012.parquet`` and ``outcomes/step_000012.parquet``.

    ``outcomes`` contains the outcomes. It is written last, so a step with this file is complete. With tokens, a record
    also has ``vocabulary``. If the step made an update, it also has ``traces`` and ``updates``.
    """

    def __init__(self, directory: str | Path) -> None:
        """Use `directory`, the directory ``record`` of a run. Nothing is read yet."""
        self._directory = Path(directory)

    def steps(self) -> list[int]:
        """Return the recorded steps, in order."""
        return self._numbers("outcomes")

    def first_step(self) -> int:
        """Return the first step with a file of any kind; 0 if there is no file."""
        return min((step for kind in KINDS for step in self._numbers(kind)), default=0)

    def write(
        self,
        step: int,
        episodes: Sequence[RecordedEpisode],
        outcomes: Sequence[RecordedOutcome],
        content: schemas.Content,
        sampler: Sampler | None = None,
        *,
        update: RecordedUpdate | None = None,
        vocabulary: Mapping[int, str] | None = None,
    ) -> None:
        """Write the record of a step, and replace an earlier record of it.

        Args:
            step: number of the step.
            episodes: episodes that were generated in the step.
            outcomes: outcomes of their trajectories, and of trajectories that waited.
            content: contents to record of the episodes.
            sampler: tokenizer and temperature of the episodes. None: unknown.
            update: the update of the step. None: the step made no update, or it is not recorded.
            vocabulary: token id -> text, for tokens that no earlier step has. None: not recorded.

        Raises:
            RecordError: the files cannot be written.
        """
        self.write_tables(
            step, self.tables_of(episodes, outcomes, content, sampler, update=update, vocabulary=vocabulary)
        )

    @staticmethod
    def tables_of(
        episodes: Sequence[RecordedEpisode],
        outcomes: Sequence[RecordedOutcome],
        content: schemas.Content,
        sampler: Sampler | None = None,
        *,
        update: RecordedUpdate | None = None,
        vocabulary: Mapping[int, str] | None = None,
    ) -> StepTables:
        """Return the contents of a step's files. Later changes of the episodes do not change them. See `write`."""
        marks = {CONTENT_KEY: content, **_marks_of(sampler or Sampler())}
        contents = {"episodes": (episode_table(episodes, content), marks)}
        if vocabulary is not None:
            words = [{"id": number, "text": text} for number, text in vocabulary.items()]
            contents["vocabulary"] = _table("vocabulary", words), marks
        if update is not None:
            contents["traces"] = trace_table(update), marks
            rows = tables.update_rows(update.optimizer_steps)
            contents["updates"] = _table("updates", rows), marks | {OBJECTIVE_KEY: json.dumps(update.objective)}
        contents["outcomes"] = outcome_table(outcomes), marks
        return contents

    def write_tables(self, step: int, contents: StepTables) -> None:
        """Write the files of a step. Raises the errors of `write`."""
        try:
            for kind in reversed(KINDS):
                self.place(kind, step).unlink(missing_ok=True)
            found: dict[str, str] = {}
            for kind, (table, marks) in contents.items():
                if kind == LAST_KIND:
                    data = add_own_digest(encode_table(table, {**marks, DIGESTS_KEY: digests_mark(found)}))
                else:
                    data = encode_table(table, marks)
                    found[kind] = digest_of(data)
                write_file(self.place(kind, step), data)
        except (OSError, pa.ArrowException) as error:
            raise RecordError(
                "not-writable",
                f"Step {step} cannot be recorded in {self._directory}: {error}.",
                "Free disk space, or correct the permissions of the directory.",
            ) from error

    def episodes(self, step: int) -> list[RecordedEpisode]:
        """Read the episodes of a step.

        Raises:
            RecordError: the step is not recorded, was recorded without tokens, or cannot be read.
        """
        return read_episodes(self.place("episodes", step))

    def outcomes(self, step: int) -> list[RecordedOutcome]:
        """Read the outcome of each trajectory in a step.

        Raises:
            RecordError: the step is not recorded, or cannot be read.
        """
        return [tables.recorded_outcome(row) for row in self.outcome_table(step).to_pylist()]

    def episode_table(self, step: int, trajectory: str | None = None) -> pa.Table:
        """Read the columns of `schemas.EPISODES`. If text and tokens are not recorded, they are null.

        Raises the errors of `outcomes`.

        Args:
            step: step in which the episodes were generated.
            trajectory: uid of a trajectory. Only its episode is read, from a part of the file. The result has no row if
                the step did not generate it. None: all episodes.
        """
        if trajectory is None:
            return self._read("episodes", step)
        return read_rows(self.place("episodes", step), schemas.EPISODES, "trajectories.list.element.uid", trajectory)

    def outcome_table(self, step: int) -> pa.Table:
        """Read the columns of `schemas.OUTCOMES`. Raises the errors of `outcomes`."""
        return self._read("outcomes", step)

    def trace_table(self, step: int, trajectory: str | None = None) -> pa.Table:
        """Read the columns of `schemas.TRACES`. It has a row for each epoch and each segment of a trained trajectory.

        If the backend records no trace, it has one row per segment, without epoch, log-probs and coefficients.

        Args:
            step: step of the update.
            trajectory: uid of a trajectory. Only its rows are read, from parts of the files. None: all rows.

        Raises:
            RecordError: tokens are not recorded, the step made no update, or a file cannot be read.
        """
        if trajectory is None:
            return fill_traces(self._read("traces", step), self._episodes_if_any)
        rows = read_rows(self.place("traces", step), schemas.TRACES, "trajectory", trajectory)
        return fill_traces(rows, lambda rollout_step: self._episodes_if_any(rollout_step, trajectory))

    def has_update(self, step: int) -> bool:
        """True if an update of the step is recorded."""
        return self.place("updates", step).exists()

    def has_tokens(self, step: int) -> bool:
        """True if a step was recorded with text and tokens. False if its episodes cannot be read."""
        return has_tokens(self.place("episodes", step))

    def update_table(self, step: int) -> pa.Table:
        """Read the columns of `schemas.UPDATES`, with a row per optimizer step. No rows if the backend reports none.

        Raises the errors of `trace_table`.
        """
        return self._read("updates", step)

    def objective(self, step: int) -> dict[str, Any]:
        """Read the objective of an update. See `rllm_record.steps.accounting`. Raises the errors of `trace_table`."""
        place = self.place("updates", step)
        try:
            found: dict[str, Any] = json.loads(read_marks(place)[OBJECTIVE_KEY])
        except (KeyError, ValueError) as error:
            raise RecordError(
                "damaged-record",
                f"{place} has no objective.",
                "Copy it back from a backup. The other steps can still be read.",
            ) from error
        return found

    def vocabulary(self, step: int) -> dict[int, str]:
        """Return token id -> text for all tokens in the record up to a step. Empty if no text is recorded.

        Raises:
            RecordError: a file cannot be read.
        """
        found: dict[int, str] = {}
        for number in self._numbers("vocabulary"):
            if number <= step:
                table = self._read("vocabulary", number)
                found |= zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True)
        return found

    def forget_from(self, step: int) -> None:
        """Delete the record of a step and of all later steps, because the run repeats them."""
        for kind in reversed(KINDS):
            for number in self._numbers(kind):
                if number >= step:
                    self.place(kind, number).unlink()

    def _numbers(self, kind: str) -> list[int]:
        return sorted(step_files(self._directory / kind))

    def _episodes_if_any(self, step: int, trajectory: str | None = None) -> pa.Table | None:
        return self.episode_table(step, trajectory) if self.place("episodes", step).exists() else None

    def place(self, kind: str, step: int) -> Path:
        """Return the path of a step's file of a kind of `KINDS`. The file may be missing."""
        return self._directory / kind / f"step_{step:06d}.parquet"

    def _read(self, kind: str, step: int) -> pa.Table:
        return read_table(self.place(kind, step), KINDS[kind])


def _table(kind: str, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, KINDS[kind])


def step_files(directory: Path) -> dict[int, Path]:
    """Return the file of each step in a directory. Empty if the directory does not exist yet."""
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return {}
    found = ((STEP_FILE.fullmatch(entry.name), entry) for entry in entries)
    return {int(match[1]): Path(entry.path) for match, entry in found if match}


def read_episodes(file: Path) -> list[RecordedEpisode]:
    """Read the episodes of one file of a record.

    Raises:
        RecordError: the file was recorded without tokens, is a different kind of file, or cannot be read.
    """
    table = read_table(file, schemas.EPISODES)
    if table["trajectories"].null_count:
        raise RecordError(
            "damaged-record",
            f"{file} contains no episodes.",
            "Copy it back from a backup. The other steps can still be read.",
        )
    return [tables.recorded_episode(row) for row in table.to_pylist()]


def sampler_of(file: Path) -> Sampler:
    """Read the tokenizer and the temperature of a file's tokens, if they are recorded.

    Raises:
        RecordError: the file cannot be read.
    """
    marks = read_marks(file)
    tokenizer, temperature = marks.get(TOKENIZER_KEY), marks.get(TEMPERATURE_KEY)
    return Sampler(
        tokenizer=None if tokenizer is None else tokenizer.decode(),
        temperature=None if temperature is None else float(temperature),
    )


def _marks_of(sampler: Sampler) -> dict[bytes, str]:
    known = {TOKENIZER_KEY: sampler.tokenizer, TEMPERATURE_KEY: sampler.temperature}
    return {key: str(value) for key, value in known.items() if value is not None}


def has_tokens(file: Path) -> bool:
    """True if a file of episodes was recorded with text and tokens. False if it cannot be read."""
    try:
        return read_marks(file).get(CONTENT_KEY) == b"tokens"
    except RecordError:
        return False


def digest_of(data: bytes) -> str:
    """Return a digest of 32 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=len(BLANK_DIGEST) // 2).hexdigest()


def digests_mark(digests: Mapping[str, str]) -> str:
    """Return the metadata value of a file of outcomes, before the file's own digest is added.

    Args:
        digests: kind -> digest of the step's other files.
    """
    return json.dumps({**digests, LAST_KIND: BLANK_DIGEST})


def add_own_digest(data: bytes) -> bytes:
    """Return the contents of a file of outcomes with its own digest added."""
    return _replace_own_digest(data, BLANK_DIGEST, digest_of(data))


def has_own_digest(data: bytes, digest: str) -> bool:
    """True if the contents of a file of outcomes match `digest`, the digest in its metadata."""
    return digest_of(_replace_own_digest(data, digest, BLANK_DIGEST)) == digest


def _replace_own_digest(data: bytes, before: str, after: str) -> bytes:
    # The metadata is at the end of a Parquet file, uncompressed.
    head, name, tail = data.rpartition(f'"{LAST_KIND}": "{before}"'.encode())
    return head + name.replace(before.encode(), after.encode()) + tail
