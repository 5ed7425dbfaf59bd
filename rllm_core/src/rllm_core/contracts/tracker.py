"""Trackers: where metrics go while a run is under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from pathlib import Path


class Tracker(Protocol):
    def log(self, global_step: int, metrics: Mapping[str, float], /) -> None:
        """Receive the metrics of one finished step."""
        ...

    def close(self) -> None:
        """Flush. Called once, at the end of the run."""
        ...


@dataclass(frozen=True, kw_only=True)
class TrackerPlugin(Plugin[ParamsT]):
    """Offers a tracker. Chosen by ``rllm.trainer.logger``.

    `load` returns a factory that takes the run folder and the options.
    """

    kind: ClassVar[str] = "tracker"

    load: Callable[[], Callable[[Path, Any], Tracker]]
