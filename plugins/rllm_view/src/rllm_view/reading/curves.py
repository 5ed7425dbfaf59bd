"""The curves of a run: the metrics that are drawn together, and their points."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One picture with several curves."""

    id: str
    title: str
    pattern: str
    """Regular expression that matches the whole name of a metric."""
    share: bool = False
    """True if the metrics are between 0 and 1."""
    needs: str | None = None
    """Metric that a run has if the panel is for it. None: for every run."""


TIMES = "time"
PANELS = (
    Panel(id="loss", title="Loss", pattern=r"actor/loss|preference/loss|val/.+/loss", needs="batch/examples"),
    Panel(id="reward", title="Reward", pattern=r"reward/[^/]+/mean|val/.+/reward"),
    Panel(id="solved", title="Share solved", pattern=r"batch/solved|val/.+/pass@1", share=True),
    Panel(id="entropy", title="Entropy, nats", pattern=r"actor/entropy"),
    Panel(id="kl", title="KL divergence, nats", pattern=r"actor/kl_(old_new|ref)"),
    Panel(id="grad_norm", title="Gradient norm before clipping", pattern=r"(actor|critic)/grad_norm"),
    Panel(id="clip_fraction", title="Share of tokens clipped", pattern=r"actor/clip_fraction", share=True),
    Panel(id="response_length", title="Sampled tokens per trajectory", pattern=r"response_length/(mean|max)"),
    Panel(id=TIMES, title="Seconds per stage", pattern=r"time/(?!step$|tokens_per_second$).+"),
    Panel(id="staleness", title="Staleness, updates", pattern=r"staleness/(mean|max)"),
)
STAGES_SHOWN = 6
"""Maximum number of stages in the panel of times. The longest stages are shown, because the others are short."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The points of one metric."""

    steps: Sequence[int]
    """Training steps from 0. -1 is the validation before the first step."""
    values: Sequence[float | None]
    """None: not a finite number."""


def metric_names(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of all logged metrics, in order."""
    return sorted({name for line in lines for name in line} - {"step"})


def curves_of(names: Set[str], lines: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Return the curves of metrics, by name."""
    found: dict[str, tuple[list[int], list[float | None]]] = {}
    for line in lines:
        for name in names & line.keys():
            steps, values = found.setdefault(name, ([], []))
            steps.append(line["step"])
            values.append(round_value(line[name]))
    return {name: Curve(steps=steps, values=values) for name, (steps, values) in found.items()}


def panels_of(lines: Sequence[Mapping[str, Any]], more: Collection[str] = ()) -> dict[str, Any]:
    """Return the standard panels, the names of all metrics, and the curves of the panels and of `more` metrics."""
    names = metric_names(lines)
    in_panels = {
        panel.id: [name for name in names if panel.needs in {None, *names} and re.fullmatch(panel.pattern, name)]
        for panel in PANELS
    }
    curves = curves_of({*more}.union(*in_panels.values()), lines)
    in_panels[TIMES] = _longest(curves, in_panels[TIMES])
    shown = {*more}.union(*in_panels.values())
    return {
        "names": names,
        "panels": [
            {"id": panel.id, "title": panel.title, "share": panel.share, "names": in_panels[panel.id]}
            for panel in PANELS
        ],
        "curves": {name: curves[name] for name in names if name in shown},
    }


def _longest(curves: Mapping[str, Curve], names: Sequence[str]) -> list[str]:
    by_length = sorted(names, key=lambda name: -sum(value or 0.0 for value in curves[name].values))
    return by_length[:STAGES_SHOWN]


def round_value(value: object) -> float | None:
    """Return a number with six significant digits. None if the value is not a finite number."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")
