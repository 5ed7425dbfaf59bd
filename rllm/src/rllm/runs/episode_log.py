"""EpisodeLog: every training episode on disk, one compressed JSON Lines file per step (`rllm.episode_logging`)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from rllm_core.contracts.observer import Observer
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.codec import episode_to_json
from rllm_core.errors import RllmError
from rllm_core.files import write_atomically

_OTHER_DIRECTORY = "Choose another directory with rllm.episode_logging.episode_log_dir=DIRECTORY, or move this one away if nobody needs it."
MARKER = "run.json"
"""Says whose episodes a directory outside the run directory holds: ``{"run_directory": "/home/…/runs/project/experiment"}``."""


class EpisodeLog(Observer):
    """Writes ``step_000012.jsonl.gz``: the episodes of the step with index 12, masked ones included.

    A line is an episode as `rllm_core.data.codec` writes it, and the ``batch`` of the step it was played in, from 0.

    Args:
        directory: where to.
        run_directory: directory of the run. None: `directory` belongs to the run and to nothing else, as its own `episodes/`.

    Raises:
        RllmError: `directory` holds episodes of another run, or cannot be looked at.
    """

    def __init__(self, directory: Path, run_directory: Path | None = None) -> None:
        self._directory = directory
        self._run = None if run_directory is None else str(run_directory.resolve())
        self._require_own()

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        """Drop episodes of steps that are made again, by a resumed run or one that replaces another."""
        # Once more: another run may have begun here while this one was getting ready.
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
        beside = file.with_suffix(".tmp")
        # No time stamp inside: the same run gives the same bytes.
        with beside.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed:
            for number, episodes in enumerate(step.generated_by_batch):
                for episode in episodes:
                    packed.write(json.dumps(episode_to_json(episode) | {"batch": number}).encode() + b"\n")
        beside.replace(file)

    def _files(self) -> list[tuple[int, Path]]:
        """Files of steps, with their numbers."""
        named = [
            (file.name.removeprefix("step_").removesuffix(".jsonl.gz"), file)
            for file in self._directory.glob("step_*.jsonl.gz")
        ]
        return [(int(number), file) for number, file in named if number.isdecimal()]

    def _require_own(self) -> None:
        """Two runs in one directory would delete and overwrite each other's episodes."""
        if self._run is None:
            return
        marker = self._directory / MARKER
        try:
            said = json.loads(marker.read_text(encoding="utf-8")) if marker.exists() else None
        except (OSError, ValueError) as error:
            raise RllmError(
                "file-unreadable",
                f"{marker} cannot be read: {error}. It says whose episodes {self._directory} holds.",
                _OTHER_DIRECTORY,
            ) from error
        if said is None and not self._files():
            return
        owner = said.get("run_directory") if isinstance(said, dict) else None
        if owner != self._run:
            whose = f"the run in {owner}" if owner else "another run"
            raise RllmError(
                "directory-in-use", f"{self._directory} is where {whose} keeps its episodes.", _OTHER_DIRECTORY
            )
