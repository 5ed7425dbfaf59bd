"""The tracker `jsonl`: one JSON object per line, for programs that follow a run."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from rllm.trackers.options import JsonLinesParams
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.errors import RllmError
from rllm_core.files import write_atomically

FILE_NAME = "tracker.jsonl"
KEYS = {"step", "time", "metrics"}


class JsonLinesTracker(Observer):
    """Writes ``{"step": 12, "time": 1767225600.5, "metrics": {"reward/agent/mean": 0.5}}``, time in Unix seconds.

    A file outside the run folder may be shared by several runs: each line there also has
    ``"run": "project/experiment"``, and those of other runs are left alone.
    """

    def __init__(self, run: TrackedRun, params: JsonLinesParams) -> None:
        self._path = run.directory / Path(params.path or FILE_NAME).expanduser()
        is_inside = self._path.resolve().is_relative_to(run.directory.resolve())
        self._whose = {} if is_inside else {"run": f"{run.project_name}/{run.experiment_name}"}
        self._file: TextIO | None = None

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        if self._path.is_file():
            self._forget_from(first_step)

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """Append one line. Numbers JSON does not know become null."""
        plain = {name: float(value) if math.isfinite(value) else None for name, value in sorted(metrics.items())}
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8")
        line = {**self._whose, "step": global_step, "time": time.time(), "metrics": plain}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        if self._whose:
            # Another run may replace the file by one without its own old lines: what is kept open would be lost.
            self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _forget_from(self, first_step: int) -> None:
        """Drop what this run will write again; a run that starts from the beginning also validates before it again."""
        # Behind the last newline is what a crash cut off.
        lines = list(map(_parsed, self._path.read_bytes().split(b"\n")[:-1]))
        if any(not isinstance(line, dict) or line.keys() - {"run"} != KEYS for line in lines):
            # It would be lost. `path` may point anywhere.
            raise RllmError(
                "directory-in-use", f"{self._path} holds lines that no jsonl tracker wrote.", "Choose another `path`."
            )
        kept = [line for line in lines if not self._is_own(line) or (first_step and line["step"] < first_step)]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        # Where there is nothing to drop, a file that other runs are writing stays the file that they write.
        if text != self._path.read_text(encoding="utf-8"):
            write_atomically(self._path, text)

    def _is_own(self, line: Mapping[str, object]) -> bool:
        return not self._whose or line.get("run") == self._whose["run"]


def _parsed(line: bytes) -> Any:
    """None where it is no JSON."""
    try:
        return json.loads(line)
    except ValueError:
        return None
