"""Run: everything that is read of one run folder, with what stays in memory between two looks."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllm.runs.metrics_file import METRICS
from rllm.runs.run_directory import LENGTH, PLUGINS
from rllm_record.run_places import RunPlace
from rllm_record.steps import RecordError
from rllm_view.reading.index import StepIndex
from rllm_view.reading.metrics import MetricsFile, last_values
from rllm_view.reading.record_files import fate_files, state_of
from rllm_view.reading.settings import Settings, read_settings
from rllm_view.reading.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run in a list of runs."""

    id: str
    name: str
    folder: str
    backend: str | None
    estimator: str | None
    loss: str | None
    model: str | None
    steps: int
    """Finished training steps."""
    total_steps: int | None
    """Steps of the whole run. None if the run did not record them."""
    reward: float | None
    """Mean reward of the first role in the newest step."""
    solved: float | None
    """Share of solved rollouts in the newest step."""
    validation: float | None
    """pass@1 of the newest validation, of the data source that comes first."""
    recorded_steps: int
    content: str | None
    """Level of the record: ``fates`` or ``tokens``. None if the run has no record."""
    modified: float
    """Time of the last change of its metrics, in seconds of Unix time. 0.0 if it has no metrics."""


class Run:
    """Safe to use from several threads."""

    def __init__(self, place: RunPlace) -> None:
        self.place = place
        self.record = place.directory / "record"
        self.index = StepIndex(place.directory)
        self.vocabulary = Vocabulary(self.record)
        self._metrics = MetricsFile(place.directory)
        self._lock = threading.Lock()

    def lines(self) -> Sequence[Mapping[str, Any]]:
        """The lines of its metrics so far."""
        with self._lock:
            return list(self._metrics.lines())

    @property
    def damaged_lines(self) -> list[int]:
        """Numbers of the lines of its metrics that cannot be read, from 1."""
        return self._metrics.damaged

    def settings(self) -> Settings:
        """Return the run's settings at its start."""
        return read_settings(self.place.directory)

    def plugins(self) -> list[dict[str, str]]:
        """Return the run's plugins. Empty if they are not recorded."""
        found = self._json(PLUGINS)
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    def summary(self) -> RunSummary:
        """Read without opening a file of the record."""
        lines = self.lines()
        last = last_values([line for line in lines if line["step"] >= 0])
        used = {entry.get("kind"): entry.get("name") for entry in reversed(self.plugins())}
        settings = self.settings()
        recorded = fate_files(self.record)
        modified = state_of(self.place.directory / METRICS).modified / 1e9
        return RunSummary(
            id=self.place.id,
            name=self.place.name,
            folder=str(self.place.directory),
            backend=used.get("backend"),
            estimator=used.get("estimator"),
            loss=used.get("loss"),
            model=settings.text("model.name"),
            steps=1 + max((line["step"] for line in lines if "train/weight_version" in line), default=-1),
            total_steps=self._total_steps(),
            reward=_first(last, "reward/", "/mean"),
            solved=last.get("batch/solved"),
            validation=_first(last, "val/", "/pass@1"),
            recorded_steps=len(recorded),
            content=(settings.text("rllm.record") or "fates") if recorded else None,
            modified=modified,
        )

    def problems(self) -> list[str]:
        """Return a sentence for each unreadable part of the run. For the record, this covers the indexed files."""
        found = [f"Step {step}: {problem.message}" for step, problem in sorted(self.index.problems.items())]
        if self.damaged_lines:
            found.append(f"Lines of {METRICS} that cannot be read: {', '.join(map(str, self.damaged_lines))}.")
        return found

    def require_step(self, step: int | None) -> None:
        """Raise RecordError if this step is not recorded. None: if no step is recorded."""
        recorded = fate_files(self.record)
        if step in recorded or (step is None and recorded):
            return
        if not recorded:
            raise RecordError(
                "no-record",
                f"{self.place.directory} has no record.",
                "Run `rllm train` again with rllm.record=tokens. It needs rllm-record (`pip install rllm-record`).",
            )
        raise RecordError(
            "no-record", f"Step {step} is not recorded.", f"Recorded: steps {min(recorded)} to {max(recorded)}."
        )

    def close(self) -> None:
        """Free what is in memory."""
        self.index.close()

    def _total_steps(self) -> int | None:
        found = self._json(LENGTH)
        total = found.get("total_steps") if isinstance(found, dict) else None
        return total if isinstance(total, int) else None

    def _json(self, name: str) -> Any:
        """Return the content of a JSON file of the run. None if it cannot be read."""
        try:
            return json.loads((self.place.directory / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None


def _first(values: Mapping[str, float], start: str, end: str) -> float | None:
    names = sorted(name for name in values if name.startswith(start) and name.endswith(end))
    return values[names[0]] if names else None
