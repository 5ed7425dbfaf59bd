"""Whether a replay gives the advantages that the run itself logged: the proof that the comparison is about this run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rllm_core.rescoring.rescore import Rescored
from rllm_core.run_folder import METRICS, read_lines

PREFIX = "advantage/"
TOLERANCE = 1e-6
"""Relative; the same computation on another machine may add in another order."""


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """One figure that is not what the run logged."""

    step: int
    metric: str
    logged: float | None
    replayed: float | None


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """The run's own estimators, replayed, beside its ``metrics.jsonl``."""

    steps: int
    """Compared."""
    equal: int
    """Steps all of whose ``advantage/…`` figures are equal."""
    first_deviation: Deviation | None


def reproduction_of(result: Rescored) -> Reproduction | None:
    """None where other estimators or other rules than the run's were asked for, or it left no metrics."""
    own = next((setup for setup in result.setups if setup.of_run), None)
    folder = result.source.run_folder
    if own is None or folder is None or not result.as_run or not (folder / METRICS).is_file():
        return None
    logged: dict[int, dict[str, float | None]] = {}
    for line in read_lines(folder / METRICS):
        logged.setdefault(line["step"], {}).update(_advantages(line))
    compared = [step for step in result.steps if step.step in logged]
    deviations = [
        _deviation(step.step, logged[step.step], _advantages(step.metrics.get(own.label, {}))) for step in compared
    ]
    return Reproduction(
        steps=len(compared),
        equal=deviations.count(None),
        first_deviation=next((deviation for deviation in deviations if deviation is not None), None),
    )


def _advantages(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: value for name, value in metrics.items() if name.startswith(PREFIX)}


def _deviation(step: int, logged: Mapping[str, float | None], replayed: Mapping[str, float | None]) -> Deviation | None:
    for metric in sorted(logged.keys() | replayed.keys()):
        was, now = logged.get(metric), replayed.get(metric)
        equal = was == now if was is None or now is None else math.isclose(was, now, rel_tol=TOLERANCE, abs_tol=1e-9)
        if not equal:
            return Deviation(step=step, metric=metric, logged=was, replayed=now)
    return None
