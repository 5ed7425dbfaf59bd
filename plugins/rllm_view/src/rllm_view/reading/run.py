"""Run: the metrics, the settings and the record of one run directory, with the parts that stay in memory."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rllm_record.run_files import CONFIG, LENGTH, METRICS, PLUGINS, RunLocation, parse_line, read_status
from rllm_record.steps import RecordError
from rllm_view.reading.index import StepIndex
from rllm_view.reading.record_files import Vocabulary, outcome_files, state_of


class MetricsFile:
    """Lines of a metrics file, which may still grow. After a resume replaced the file, it is read again completely."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / METRICS
        self._offset = 0
        self._inode = -1
        self._lines: list[dict[str, Any]] = []
        self.damaged: list[int] = []
        """Numbers of invalid lines, from 1. These lines are skipped."""

    def lines(self) -> list[dict[str, Any]]:
        """Return all complete lines so far, in order.

        Lines of validations have ``val/…`` metrics and the number of the step before the validation.
        """
        try:
            file = self._path.open("rb")
        except OSError:
            self._forget()
            return self._lines
        with file:
            self._read_on(file)
        return self._lines

    def _read_on(self, file: Any) -> None:
        status = os.fstat(file.fileno())
        if (status.st_ino, status.st_size >= self._offset) != (self._inode, True):
            self._forget()
            self._inode = status.st_ino
        if status.st_size == self._offset:
            return
        file.seek(self._offset)
        whole, _, _ = file.read().rpartition(b"\n")
        if not whole:
            return
        self._offset += len(whole) + 1
        for line in whole.split(b"\n"):
            self._take(line)

    def _take(self, line: bytes) -> None:
        values = parse_line(line)
        if values is None:
            self.damaged.append(1 + len(self._lines) + len(self.damaged))
        else:
            self._lines.append(values)

    def _forget(self) -> None:
        self._offset, self._inode, self._lines, self.damaged = 0, -1, [], []


def last_values(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the latest number of each metric."""
    values: dict[str, float] = {}
    for line in lines:
        values.update({name: value for name, value in line.items() if _is_number(value)})
    return values


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True)
class ChangedValue:
    """A value that is not a default."""

    key: str
    value: str
    """The value as JSON."""
    origin: str


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a run at its start. Empty if its config cannot be read."""

    values: Mapping[str, Any]
    """Values by dotted key."""
    given: tuple[ChangedValue, ...]

    def text(self, key: str) -> str | None:
        """Return a value if it is a string."""
        value = self.values.get(key)
        return value if isinstance(value, str) else None


def read_settings(directory: Path) -> Settings:
    """Read the settings of the run in a directory."""
    try:
        # libyaml is faster, if it is available. Runs are listed often.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        tree = yaml.load((directory / CONFIG).read_bytes(), loader)
    except (OSError, yaml.YAMLError, ValueError):
        tree = {}
    tree = tree if isinstance(tree, dict) else {}
    core = tree.get("rllm")
    composed = core.pop("composed", ()) if isinstance(core, dict) else ()
    return Settings(values=dict(leaves(tree)), given=tuple(_read_layers(composed)))


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of each leaf of a tree."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _read_layers(composed: Any) -> Iterator[ChangedValue]:
    """Yield the values of layers. A layer is a tree as JSON with its origin. Later layers override earlier layers."""
    found: dict[str, ChangedValue] = {}
    for layer in composed if isinstance(composed, list) else ():
        try:
            tree = json.loads(layer["set"])
            values = list(leaves(tree))
        except (KeyError, TypeError, ValueError, AttributeError):
            continue  # A different version wrote this layer. The values themselves are available.
        for key, value in values:
            found[key] = ChangedValue(key=key, value=json.dumps(value), origin=str(layer.get("from", "")))
    yield from found.values()


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run in a list of runs."""

    id: str
    name: str
    directory: str
    status: str | None
    """One of `rllm_record.run_files.Status`. None if the run did not record it."""
    started: str | None
    """Time of its first start in UTC, such as ``2026-11-29T09:41:33+00:00``. None if the run did not record it."""
    ended: str | None
    """Time of its end. None if it continues or was killed."""
    reason: str
    """Message of the error that ended it."""
    environment: str | None
    backend: str | None
    estimator: str | None
    loss: str | None
    model: str | None
    steps: int
    """Number of finished training steps."""
    total_steps: int | None
    """Steps of the whole run. None if the run did not record them."""
    reward: float | None
    """Mean reward of the first role in the latest step."""
    solved: float | None
    """Share of solved rollouts in the latest step. None if they have no rewards."""
    validation: float | None
    """pass@1 of the latest validation, for the first data source."""
    recorded_steps: int
    content: str | None
    """Level of the record: ``outcomes`` or ``tokens``. None if the run has no record."""
    modified: float
    """Time of the last change of its metrics, in seconds of Unix time. 0.0 if it has no metrics."""


def newest_first(summaries: Iterable[RunSummary]) -> list[RunSummary]:
    """Return runs by their start, the newest first. Runs without a recorded start are last, by their last change."""
    return sorted(summaries, key=lambda each: (each.started or "", each.modified), reverse=True)


class Run:
    """The metrics, settings and record of a run. It is safe to use from several threads."""

    def __init__(self, place: RunLocation) -> None:
        self.place = place
        self.record = place.directory / "record"
        self.index = StepIndex(place.directory)
        self.vocabulary = Vocabulary(self.record)
        self._metrics = MetricsFile(place.directory)
        self._lock = threading.Lock()

    def lines(self) -> Sequence[Mapping[str, Any]]:
        """Return the lines of its metrics so far."""
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
        return [each for each in found if _is_text(each)] if isinstance(found, list) else []

    def summary(self) -> RunSummary:
        """Return a summary, without opening a file of the record."""
        lines = self.lines()
        last = last_values([line for line in lines if line["step"] >= 0])
        used = {entry.get("kind"): entry.get("name") for entry in reversed(self.plugins())}
        settings = self.settings()
        recorded = outcome_files(self.record)
        modified = state_of(self.place.directory / METRICS).modified / 1e9
        status = read_status(self.place.directory)
        reward = _first(last, "reward/", "/mean")
        return RunSummary(
            id=self.place.id,
            name=self.place.name,
            directory=str(self.place.directory),
            status=status.status if status else None,
            started=status.started if status else None,
            ended=status.ended if status else None,
            reason=status.reason if status else "",
            environment=used.get("environment") and (settings.text("rllm.env.name") or used["environment"]),
            backend=used.get("backend"),
            estimator=used.get("estimator"),
            loss=used.get("loss"),
            model=settings.text("model.name"),
            steps=1 + max((line["step"] for line in lines if "train/weight_version" in line), default=-1),
            total_steps=self._total_steps(),
            reward=reward,
            solved=None if reward is None else last.get("batch/solved"),
            validation=_first(last, "val/", "/pass@1"),
            recorded_steps=len(recorded),
            content=(settings.text("rllm.record") or "outcomes") if recorded else None,
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
        recorded = outcome_files(self.record)
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
        """Free the memory of the index."""
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


def _is_text(entry: Any) -> bool:
    """True if this is a mapping of strings. A version that does not exist yet may write something else."""
    return isinstance(entry, dict) and all(isinstance(value, str) for value in entry.values())


def _first(values: Mapping[str, float], start: str, end: str) -> float | None:
    names = sorted(name for name in values if name.startswith(start) and name.endswith(end))
    return values[names[0]] if names else None
