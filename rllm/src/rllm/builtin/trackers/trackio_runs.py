"""The tracker `trackio`: a run of Trackio, in its own directory, for ``trackio show``."""

from __future__ import annotations

import contextlib
import contextvars
import io
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from rllm_core.contracts.observer import Observer
from rllm_core.contracts.params import Params
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.files import write_atomically

if TYPE_CHECKING:
    from trackio import Run

T = TypeVar("T")


class TrackioParams(Params):
    group: str | None = None
    """Group of the run in Trackio."""


ID_FILE = "trackio_run_id"
"""File with the id under which a resumed run continues."""


class TrackioTracker(Observer):
    """Metrics over `step`, counted as everywhere, and the config.

    Trackio reads its directory from `TRACKIO_DIR` once per process, so all runs share it. It continues the newest run
    of a name. If that is a different run, the resumed run starts a new one. If a resumed run repeats steps, their first
    values remain, as with W&B.
    """

    def __init__(self, run: TrackedRun, params: TrackioParams) -> None:
        self._tracked = run
        self._params = params
        self._run: Run | None = None
        self._names: defaultdict[int, set[str]] = defaultdict(set)
        """Names of the metrics that an earlier start logged, by step."""

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        self._start(resumed=first_step > 0)

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """Send one row. NaN and infinite numbers are stored unchanged."""
        run = self._run or self._start(resumed=False)
        if new := {name: float(value) for name, value in metrics.items() if name not in self._names[global_step]}:
            run.log(new, step=global_step)

    def close(self) -> None:
        """Wait until everything is stored, at most 30 seconds."""
        run, self._run = self._run, None
        if run is not None:
            _quietly(run.finish)

    def _start(self, *, resumed: bool) -> Run:
        from trackio.sqlite_storage import SQLiteStorage

        id_file = self._tracked.directory / ID_FILE
        earlier = id_file.read_text(encoding="utf-8").strip() if resumed and id_file.exists() else None
        run = self._init(resume="never" if earlier is None else "allow")
        if earlier is not None and run.id != earlier:
            _quietly(run.finish)
            run = self._init(resume="never")
        elif earlier is not None:
            for row in SQLiteStorage.get_logs(run.project, run.name, run_id=run.id):
                self._names[row["step"]].update(row)
        self._run = run
        write_atomically(id_file, run.id + "\n")
        return run

    def _init(self, resume: str) -> Run:
        import trackio

        def init() -> Run:
            return trackio.init(
                project=self._tracked.project_name,
                name=self._tracked.experiment_name,
                group=self._params.group,
                config=dict(self._tracked.config),
                resume=resume,
                embed=False,  # opens no pages in notebooks
                # Both start threads, and rows of a different kind.
                auto_log_cpu=False,
                auto_log_gpu=False,
            )

        # It finishes the current run of its context. In a copy of the context, other runs of this process continue.
        return _quietly(lambda: contextvars.copy_context().run(init))


def _quietly(action: Callable[[], T]) -> T:
    """Run an action without its output, because the tracker `console` redraws the last line of the terminal."""
    with contextlib.redirect_stdout(io.StringIO()):
        return action()
