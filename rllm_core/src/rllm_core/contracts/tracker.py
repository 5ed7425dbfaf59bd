"""Trackers: where metrics go while a run is under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """What a tracker is told about its run."""

    directory: Path
    """The run folder; a tracker that writes files puts them in here."""
    project_name: str
    experiment_name: str
    config: Mapping[str, Any]
    """Every value of the run, as in its ``config.yaml``: those of the process's environment as the user wrote them."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where each value comes from, by its dotted key: ``default``, a file, ``command line``."""


class Tracker(Protocol):
    """One that is an `Observer` too hears the events of the loop.

    `on_train_start` comes before anything is logged, and after a run that this one replaces has been removed: the place
    to open files. In a resumed run its `first_step` says from which step on everything will be logged again.
    """

    def log(self, global_step: int, metrics: Mapping[str, float], /) -> None:
        """Receive the metrics of one finished step."""
        ...

    def close(self) -> None:
        """Flush. Called once: at the end of the run, or when another method has raised."""
        ...


@dataclass(frozen=True, kw_only=True)
class TrackerPlugin(Plugin[ParamsT]):
    """Offers a tracker. Chosen by ``rllm.trainer.logger``.

    `load` returns a factory that takes the run and the options. A package that `load` cannot import ends the run before
    it starts; whatever goes wrong later switches the tracker off with one warning.
    """

    kind: ClassVar[str] = "tracker"

    load: Callable[[], Callable[[TrackedRun, Any], Tracker]]
    every_run: bool = False
    """Whether every run has this tracker where its distribution is installed, with default options, chosen or not."""
