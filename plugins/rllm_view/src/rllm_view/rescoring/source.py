"""Find stored episodes (in a run folder, a folder of episodes, or one file) and their run."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from rllm.config import FILE_NAME as CONFIG
from rllm.runs.episode_log import MARKER
from rllm_view.rescoring.reading import PARQUET, EpisodesError
from rllm_view.rescoring.stored_config import read_stored_config

STEP_FILE = re.compile(r"step_(\d+)\.(?:jsonl|jsonl\.gz|parquet)")
RECORD = Path("record", "episodes")
"""Folder of a record's episodes in a run folder."""
HOW_TO_KEEP = "A run keeps its episodes with rllm.record=tokens, or rllm.episode_logging.log_episodes=true."


@dataclass(frozen=True, kw_only=True)
class StoredEpisodes:
    """Files of episodes and the run they come from."""

    path: Path
    """As the user gave it."""
    files: tuple[tuple[int, Path], ...]
    """Training step, counted from 0, and its file; in order. A file whose name tells no step counts as step 0."""
    run_folder: Path | None
    """Folder of the run. None if no configuration was found for the episodes."""


def find_episodes(path: Path) -> StoredEpisodes:
    """Find the episodes at `path`: a run folder, its folder of episodes, a folder that a run logged to, or one file.

    A record with tokens comes before a log.

    Raises:
        EpisodesError: there are none.
    """
    if not path.exists():
        raise EpisodesError(
            "file-not-found", f"There is nothing at {path}.", f"Name a run folder or a file of episodes. {HOW_TO_KEEP}"
        )
    if not path.is_dir():
        named = STEP_FILE.fullmatch(path.name)
        return StoredEpisodes(
            path=path, files=((int(named[1]) if named else 0, path),), run_folder=_run_of(path.parent)
        )
    for folder in _folders(path):
        if files := _step_files(folder):
            return StoredEpisodes(path=path, files=files, run_folder=_run_of(folder))
    raise _none_in(path)


def step_files_in(path: Path) -> tuple[tuple[int, Path], ...]:
    """Step and file of the episodes at `path`, in order; empty where it has none with tokens."""
    return next(filter(None, map(_step_files, (path, path / RECORD, path / "episodes"))), ())


def _folders(path: Path) -> list[Path]:
    """Return the folders that may contain the episodes of a folder."""
    folders = [path, path / RECORD, path / "episodes"]
    if (path / CONFIG).is_file() and (elsewhere := read_stored_config(path).rllm.episode_logging.episode_log_dir):
        folders.append(Path(elsewhere).expanduser())
    return folders


def _step_files(folder: Path) -> tuple[tuple[int, Path], ...]:
    if not folder.is_dir():
        return ()
    named = [(STEP_FILE.fullmatch(file.name), file) for file in folder.iterdir()]
    files = tuple(sorted((int(match[1]), file) for match, file in named if match))
    return files if files and _has_tokens(files[-1][1]) else ()


def _has_tokens(file: Path) -> bool:
    """Return False for a file of a record that was written without tokens."""
    if file.suffix != PARQUET:
        return True
    from rllm_record.steps.files import holds_tokens

    return holds_tokens(file)


def _run_of(folder: Path) -> Path | None:
    """The run folder that episodes in `folder` belong to: named by a marker, or the folder itself or above it."""
    candidates = [folder]
    if folder.absolute().name == "episodes":
        candidates += [folder.parent, folder.parent.parent]
    marker = folder / MARKER
    if marker.is_file():
        try:
            candidates.append(Path(json.loads(marker.read_text(encoding="utf-8"))["run_folder"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EpisodesError(
                "file-unreadable",
                f"{marker} cannot be read: {error}. This file contains the run folder of the episodes next to it.",
                f"To continue without the run's configuration, run: rm {marker}",
            ) from error
    return next((candidate for candidate in candidates if (candidate / CONFIG).is_file()), None)


def _none_in(path: Path) -> EpisodesError:
    runs = {folder.parent for folder in path.glob("*/episodes")}
    runs |= {folder.parents[1] for folder in path.glob(f"*/{RECORD}")}
    names = sorted(run.name for run in runs if run != path / RECORD.parent)
    if names:
        return EpisodesError(
            "no-episodes", f"{path} itself contains no episodes.", f"Give one of the runs in it: {', '.join(names)}."
        )
    if (path / "eval.json").is_file():
        return EpisodesError(
            "not-rescorable", f"{path} is a saved evaluation.", "Score it with a different reward: --reward NAME."
        )
    what = "The run in" if (path / CONFIG).is_file() else "The folder"
    return EpisodesError("no-episodes", f"{what} {path} contains no episodes.", HOW_TO_KEEP)
