"""Find and read stored episodes, in a run directory, a directory of episodes, or one file of any format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rllm_core.data.types import Episode
from rllm_core.errors import RllmError
from rllm_record.interchange.formats import format_of, stream_file
from rllm_record.run_files import CONFIG
from rllm_record.steps import RecordedEpisode, RecordError, Sampler
from rllm_record.steps.files import STEP_FILE, has_tokens, read_episodes, sampler_of, step_files


class EpisodesError(RllmError):
    """Stored episodes cannot be found or read."""

    exit_code = 2


def read_record(file: Path) -> Iterable[RecordedEpisode]:
    """Return the episodes of a file of a record, or of a file of a different format, whose lines are read one by one.

    Raises:
        EpisodesError: the file is not a record with tokens.
        FormatError: a file of a different format cannot be read.
    """
    if format_of(file) is not None:
        return stream_file(file)
    try:
        return read_episodes(file)
    except RecordError as error:
        raise EpisodesError(error.code, error.message, error.hint) from error


def sampler_in(file: Path) -> Sampler:
    """Return tokenizer and temperature of a file's tokens. Files of other formats do not have them.

    Raises:
        EpisodesError: the file cannot be read.
    """
    if format_of(file) is not None:
        return Sampler()
    try:
        return sampler_of(file)
    except RecordError as error:
        raise EpisodesError(error.code, error.message, error.hint) from error


def read_batches(file: Path) -> list[list[Episode]]:
    """Return the episodes of a file, by step and rollout batch. At least one batch.

    Raises:
        EpisodesError: the file is not a record with tokens.
    """
    generated = list(read_record(file))
    batches = sorted({(each.step, each.batch) for each in generated}) or [(0, 0)]
    return [[each.episode for each in generated if (each.step, each.batch) == batch] for batch in batches]


RECORD = Path("record", "episodes")
"""Directory of a record's episodes in a run directory."""
HOW_TO_KEEP = "Train with rllm.record=tokens: a run then keeps its episodes."


@dataclass(frozen=True, kw_only=True)
class StoredEpisodes:
    """Files of episodes and the run they come from."""

    path: Path
    """As the user gave it."""
    files: tuple[tuple[int, Path], ...]
    """Training step, counted from 0, and its file; in order. A file without a step in its name has step 0."""
    run_directory: Path | None
    """Directory of the run. None if no configuration was found for the episodes."""


def find_episodes(path: Path) -> StoredEpisodes:
    """Find the episodes at `path`: a run directory, a directory of episodes, or one file.

    Raises:
        EpisodesError: there are none.
    """
    if not path.exists():
        raise EpisodesError(
            "file-not-found",
            f"{path} does not exist.",
            f"Use a run directory or a file of episodes. {HOW_TO_KEEP}",
        )
    if path.is_dir() and not step_files_in(path) and format_of(path) is not None:
        return StoredEpisodes(path=path, files=((0, path),), run_directory=None)
    if not path.is_dir():
        named = STEP_FILE.fullmatch(path.name)
        return StoredEpisodes(
            path=path, files=((int(named[1]) if named else 0, path),), run_directory=_run_of(path.parent)
        )
    if not (files := step_files_in(path)):
        raise _none_in(path)
    return StoredEpisodes(path=path, files=files, run_directory=_run_of(files[0][1].parent))


def step_files_in(path: Path) -> tuple[tuple[int, Path], ...]:
    """Return step and file of the episodes with tokens at `path`, in order. Empty if it has none."""
    return next(filter(None, map(_step_files, (path, path / RECORD, path / "episodes"))), ())


def _step_files(directory: Path) -> tuple[tuple[int, Path], ...]:
    files = tuple(sorted(step_files(directory).items()))
    return files if files and has_tokens(files[-1][1]) else ()


def _run_of(directory: Path) -> Path | None:
    """Return the run directory of the episodes in `directory`. None if they have no run."""
    candidates = (directory, directory.parent, directory.parent.parent)
    return next((candidate for candidate in candidates if (candidate / CONFIG).is_file()), None)


def _none_in(path: Path) -> EpisodesError:
    runs = {directory.parents[1] for directory in path.glob(f"*/{RECORD}")}
    names = sorted(run.name for run in runs if run != path / RECORD.parent)
    if names:
        return EpisodesError(
            "no-episodes", f"{path} itself contains no episodes.", f"Use one of the runs in it: {', '.join(names)}."
        )
    what = "The run in" if (path / CONFIG).is_file() else "The directory"
    return EpisodesError("no-episodes", f"{what} {path} contains no episodes.", HOW_TO_KEEP)
