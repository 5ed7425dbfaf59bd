"""The contract of trackers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rllm.runs.run_directory import RunDirectory
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.tracker import TrackedRun, Tracker, TrackerPlugin
from rllm_core.schema.run_sections import TrainerSection
from rllm_plugin_kit.plugin import PluginContract
from rllm_plugin_kit.process_state import find_changes
from rllm_plugin_kit.run_events import LOG, STEPS, Event, events

Logged = tuple[int, str, float]
"""Step, metric, value."""
SAME = 1e-6
"""Relative difference that a tracker which keeps float32 may make."""


class TrackerContract(PluginContract[TrackerPlugin[Any]]):
    """Contract of every tracker. It receives the metrics of fake runs, in the order of the training loop."""

    kind = "tracker"
    changes: ClassVar[frozenset[str]] = frozenset()
    """Process-wide state that the tracker may change, by the names in the test's failure message. Use it for clients
    that install handlers or streams."""

    def read_back(self, directory: Path) -> Sequence[tuple[int, Mapping[str, float | None]]] | None:
        """Return the tracker's stored values, as (step, metrics) in order. None if a test cannot read them.

        Override it if a test can read them. A number that is not finite may be None.
        """
        return None

    def test_creation_does_not_change_the_run_directory(self, params: Any, tmp_path: Path) -> None:
        """A run that cannot start must not change existing files. rllm removes a replaced run only after the start."""
        with self._directory(tmp_path) as directory:
            (directory.path / "report.html").write_text("of another run")
            before = _files(tmp_path)
            self._do(self._make_tracker(directory, params).close, "close")
            if _files(tmp_path) != before:
                raise self.failure(
                    "writes into the run directory when it is made",
                    "Open files in on_train_start (derive the class from Observer), or with the first `log`.",
                )

    def test_it_writes_only_into_the_run_directory(self, params: Any, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        with contextlib.chdir(elsewhere), self._directory(tmp_path) as directory:
            self._live(directory, params)
            strange = sorted(path for path in _files(tmp_path) if not Path(path).is_relative_to(directory.path))
        if strange:
            raise self.failure(
                f"writes {strange[0]}, outside the run directory {directory.path}",
                "Put its files below `run.directory`.",
            )

    def test_any_value_and_step_can_be_logged(self, params: Any, tmp_path: Path) -> None:
        """Test also NaN and infinity, no metrics, one step twice, and step -1 (validation before training)."""
        with self._directory(tmp_path) as directory:
            tracker = self._start_tracker(directory, params)
            self._tell(tracker, Event(LOG, (-1, {})))
            for event in [*events(), *events()]:
                if event.name == LOG:
                    self._tell(tracker, event)
            self._do(tracker.close, "close")

    def test_it_does_not_change_metrics(self, params: Any, tmp_path: Path) -> None:
        with self._directory(tmp_path) as directory:
            tracker = self._start_tracker(directory, params)
            for event in list(events())[1:]:
                before = repr(event.arguments[1]) if event.name == LOG else ""
                self._tell(tracker, event)
                if event.name == LOG and repr(event.arguments[1]) != before:
                    raise self.failure(
                        "changes the metrics that it is given",
                        "Copy the metrics before changing them, because other trackers get the same mapping.",
                    )
            self._do(tracker.close, "close")

    def test_close_at_any_time_works(self, params: Any, tmp_path: Path) -> None:
        """`close` is the last call. A run may have stopped at any event before it."""
        for number in (0, 1, 3, 8):
            with self._directory(tmp_path / str(number)) as directory:
                tracker = self._start_tracker(directory, params) if number else self._make_tracker(directory, params)
                for event in list(events())[1:number]:
                    self._tell(tracker, event)
                self._do(tracker.close, f"close after {number} events")

    def test_process_wide_state_is_unchanged(self, params: Any, tmp_path: Path) -> None:
        """Nothing has changed after `close`. A thread that still runs could write later or keep the process alive."""
        self.load_plugin()
        with self._directory(tmp_path) as directory:
            if different := find_changes(lambda: self._live(directory, params), self.changes):
                raise self.failure(
                    f"leaves {', '.join(different)} changed",
                    "Restore in `close` all that it changes. If its client library cannot, set `changes` in the test.",
                )

    def test_concurrent_runs_have_separate_trackers(self, params: Any, tmp_path: Path) -> None:
        with self._directory(tmp_path / "one") as one, self._directory(tmp_path / "other") as other:
            trackers = [self._start_tracker(directory, params) for directory in (one, other)]
            for tracker, which in zip(trackers, ("the first", "the second, when the first is closed"), strict=True):
                for event in list(events())[1:]:
                    self._tell(tracker, event)
                self._do(tracker.close, f"close of {which} of two runs at a time")
            for directory in (one, other):
                self._check_stored_values(directory, _list_logged_metrics(events()), "one of two runs at a time")

    def test_logged_metrics_are_stored_with_their_step(self, params: Any, tmp_path: Path) -> None:
        with self._directory(tmp_path) as directory:
            self._live(directory, params)
            self._check_stored_values(directory, _list_logged_metrics(events()), "a run")

    def test_a_resumed_run_has_every_step_once(self, params: Any, tmp_path: Path) -> None:
        """A run is killed after three steps and resumes from a checkpoint after two steps."""
        with self._directory(tmp_path) as directory:
            self._live(directory, params, last_step=3)
            self._live(directory, params, first_step=2)
            self._check_stored_values(directory, _list_logged_metrics(events()), "a run that was resumed after 2 steps")

    def test_run_from_the_start_replaces_existing_files(self, params: Any, tmp_path: Path) -> None:
        """A run that is killed before its first checkpoint starts from the beginning in the same directory."""
        with self._directory(tmp_path) as directory:
            self._live(directory, params, last_step=3)
            self._live(directory, params)
            self._check_stored_values(directory, _list_logged_metrics(events()), "a run that was started again")

    @contextlib.contextmanager
    def _directory(self, place: Path) -> Iterator[RunDirectory]:
        directory = RunDirectory.open(TrainerSection(output_dir=str(place)), resume=True)
        try:
            yield directory
        finally:
            directory.close()

    def _make_tracker(self, directory: RunDirectory, params: Any) -> Tracker:
        trainer = {"project_name": "numbers", "experiment_name": "first", "logger": [{"name": "tensorboard"}]}
        run = TrackedRun(
            directory=directory.path,
            project_name="numbers",
            experiment_name="first",
            config={
                "rllm": {"backend": "local", "rollout": {"n": 8}, "trainer": trainer},
                "data": {"max_response_length": 16, "val_dataset": None},
                "sampling": {"train": {"temperature": 1.0}},
            },
            origins={"rllm.rollout.n": "command line"},
        )
        tracker: Tracker = self.make(run, params, called_with="the run (a TrackedRun) and the options")
        return tracker

    def _start_tracker(self, directory: RunDirectory, params: Any) -> Tracker:
        """A tracker whose run has started, in a directory that has what every run writes there."""
        tracker = self._make_tracker(directory, params)
        directory.begin({"rllm": {}}, [], STEPS)
        self._tell(tracker, next(events()))
        return tracker

    def _live(self, directory: RunDirectory, params: Any, first_step: int = 0, last_step: int = STEPS) -> None:
        """A run from start to close."""
        tracker = self._make_tracker(directory, params)
        directory.begin({"rllm": {}}, [], STEPS)
        for event in events(first_step, last_step):
            if event.name == LOG:
                directory.log(*event.arguments)
            self._tell(tracker, event)
        self._do(tracker.close, "close")

    def _tell(self, tracker: Tracker, event: Event) -> None:
        if event.name == LOG or isinstance(tracker, Observer):
            self._do(getattr(tracker, event.name), event.name, *event.arguments)

    def _do(self, method: Any, name: str, *arguments: Any) -> None:
        try:
            method(*arguments)
        except (Exception, SystemExit) as error:
            shown = repr(arguments)[:160] if name == LOG else ""
            raise self.failure(
                f"failed in {name}{shown}: {type(error).__name__}: {error}",
                "A tracker that raises is switched off for the rest of the run; take every number at every step, and "
                "let `close` end everything that was started.",
            ) from error

    def _check_stored_values(self, directory: RunDirectory, expected: Sequence[Logged], what: str) -> None:
        entries = self.read_back(directory.path)
        if entries is None:
            return
        kept = [(step, name, value) for step, metrics in entries for name, value in metrics.items()]
        expected_names, names = ([(step, name) for step, name, _ in each] for each in (expected, kept))
        if sorted(names) != sorted(expected_names):
            surplus, missing = (
                [each for each in one if one.count(each) > other.count(each)]
                for one, other in ((names, expected_names), (expected_names, names))
            )
            raise self.failure(
                f"did not store the logged metrics of {what}: too often {surplus[:3]}, missing {missing[:3]}",
                "Write every logged metric. `first_step` in on_train_start is the first step whose metrics are logged "
                "again, so remove its stored metrics and all later ones.",
            )
        values = {(step, name): value for step, name, value in expected}
        for step, name, value in kept:
            if not _same(values[step, name], value):
                raise self.failure(
                    f"has kept {value!r} as {name!r} of step {step}, which was {values[step, name]!r}",
                    "Keep numbers as they are, to float32 at least.",
                )


def _list_logged_metrics(life: Iterator[Event]) -> list[Logged]:
    logs = [event.arguments for event in life if event.name == LOG]
    return [(step, name, value) for step, metrics in logs for name, value in metrics.items()]


def _same(logged: float, kept: float | None) -> bool:
    if not math.isfinite(logged) or abs(logged) > 1e38:
        return kept is None or not math.isfinite(kept) or kept == logged
    return kept is not None and math.isclose(logged, kept, rel_tol=SAME)


def _files(directory: Path) -> dict[str, bytes]:
    """Return file contents by path, without the lock and the files that rllm writes into the run directory."""
    own = {".lock", "metrics.jsonl", "config.yaml", "length.json", "plugins.json"}
    paths = (path for path in directory.rglob("*") if path.is_file() and path.name not in own)
    return {str(path): path.read_bytes() for path in paths}
