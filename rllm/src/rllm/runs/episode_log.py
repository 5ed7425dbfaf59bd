"""EpisodeLog: all training episodes on disk, one compressed JSON Lines file per step (`rllm.episode_logging`)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from rllm_core.contracts.observer import Observer
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.codec import episode_to_json
from rllm_core.errors import RllmError
from rllm_core.files import write_atomically

_OTHER_DIRECTORY = (
    "Choose a different directory with rllm.episode_logging.episode_log_dir=DIRECTORY, or move this one if you do not "
    "need it."
)
MARKER = "run.json"
"""File in a directory outside the run directory. It identifies the run: ``{"run_directory": "/home/…/runs/p/e"}``."""


class EpisodeLog(Observer):
    """Writes ``step_000012.jsonl.gz``: the episodes of the step with index 12, masked ones included.

    A line is an episode as `rllm_core.data.codec` writes it, and its ``batch``: the number of the
    rollout batch in the step, from 0.

    Args:
        directory: directory for the files.
        run_directory: directory of the run. None if `directory` belongs only to this run, as its own `episodes/` does.

    Raises:
        RllmError: `directory` contains episodes of a different run, or cannot be read.
    """

    def __init__(self, directory: Path, run_directory: Path | None = None) -> None:
        self._directory = directory
        self._run = None if run_directory is None else str(run_directory.resolve())
        self._require_own()

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        """Drop episodes of steps that are made again, by a resumed run or one that replaces another."""
        # Check again: a different run may have begun here while this one was starting.
        self._require_own()
        if self._run is not None:
            self._directory.mkdir(parents=True, exist_ok=True)
            write_atomically(self._directory / MARKER, json.dumps({"run_directory": self._run}) + "\n")
        for number, file in self._files():
            if number >= first_step:
                file.unlink()

    def on_batch_end(self, step: TrainStep) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        file = self._directory / f"step_{step.global_step:06d}.jsonl.gz"
        temporary = file.with_suffix(".tmp")
        # No time stamp inside: the same run gives the same bytes.
        with temporary.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed:
            for number, episodes in enumerate(step.generated_by_batch):
                for episode in episodes:
                    packed.write(json.dumps(episode_to_json(episode) | {"batch": number}).encode() + b"\n")
        temporary.replace(file)

    def _files(self) -> list[tuple[int, Path]]:
        """Return the files of steps, with their numbers."""
        named = [
            (file.name.removeprefix("step_").removesuffix(".jsonl.gz"), file)
            for file in self._directory.glob("step_*.jsonl.gz")
        ]
        return [(int(number), file) for number, file in named if number.isdecimal()]

    def _require_own(self) -> None:
        """Raise RllmError if a different run uses the directory. Two runs would overwrite each other's episodes."""
        if self._run is None:
            return
        marker = self._directory / MARKER
        try:
            written = json.loads(marker.read_text(encoding="utf-8")) if marker.exists() else None
        except (OSError, ValueError) as error:
            raise RllmError(
                "file-unreadable",
                f"{marker} cannot be read: {error}. It names the run whose episodes are in {self._directory}.",
                _OTHER_DIRECTORY,
            ) from error
        if written is None and not self._files():
            return
        owner = written.get("run_directory") if isinstance(written, dict) else None
        if owner != self._run:
            whose = f"the run in {owner}" if owner else "another run"
            raise RllmError(
                "directory-in-use", f"{self._directory} is where {whose} keeps its episodes.", _OTHER_DIRECTORY
            )
