"""Trackers: destinations for metrics during a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """Facts about the run that a tracker receives."""

    directory: Path
    """The run directory. Trackers write their files into it."""
    project_name: str
    experiment_name: str
    config: Mapping[str, Any]
    """All config values of the run, as in its ``config.yaml``. References to environment variables are not resolved."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """The source of each value by dotted key: ``default``, a file, ``command line``."""
    shown_metrics: Mapping[str, str] = field(default_factory=dict)
    """Labels of the objectives' metrics that a display of a step shows first. See `ObjectivePlugin.shown_metrics`."""


class Tracker(Protocol):
    """A destination for metrics. A tracker that is also an `Observer` receives the events of the training loop.

    `on_train_start` comes before the first `log`. If the run replaces an earlier run, the earlier run is already
    removed. Open files in this method. In a resumed run, `first_step` is the first step that is logged again.
    """

    def log(self, global_step: int, metrics: Mapping[str, float], /) -> None:
        """Receive the metrics of one finished step."""
        ...

    def close(self) -> None:
        """Flush and close. Called once: at the end of the run, or after another method raised an exception."""
        ...


@dataclass(frozen=True, kw_only=True)
class TrackerPlugin(Plugin[ParamsT]):
    """A plugin spec that offers a tracker. Users choose it with ``rllm.trainer.logger``.

    `load` returns a factory that takes the run and the options. If `load` cannot import a package, the run stops before
    it starts. Any later error disables the tracker with one warning.

    For example::

        from rllm_core.contracts import TrackerPlugin
        from rllm_core.plugins import hookimpl

        class TextFile:
            def __init__(self, run, params):
                self.path = run.directory / "metrics.txt"   # opened later: a run may fail to start, or replace another

            def log(self, global_step, metrics):
                with self.path.open("a") as file:
                    file.write(f"{global_step} {dict(metrics)}\\n")

            def close(self): ...

        @hookimpl
        def rllm_trackers():
            yield TrackerPlugin(name="text_file", summary="One line per step.", load=lambda: TextFile)
    """

    kind: ClassVar[str] = "tracker"

    load: Callable[[], Callable[[TrackedRun, Any], Tracker]]
    every_run: bool = False
    """True if every run has this tracker, with default options, when its package is installed. The config need not name
    it."""
