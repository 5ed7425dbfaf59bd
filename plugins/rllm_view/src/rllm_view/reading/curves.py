"""The curves of a run: which figures of `metrics.jsonl` are drawn together, and their points."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One picture with several curves."""

    id: str
    title: str
    pattern: str
    """Regular expression of the whole name of a figure."""
    share: bool = False
    """Whether the figures are between 0 and 1."""


PANELS = (
    Panel(id="reward", title="Reward", pattern=r"reward/[^/]+/mean|val/.+/reward"),
    Panel(id="solved", title="Share solved", pattern=r"batch/solved|val/.+/pass@1", share=True),
    Panel(id="entropy", title="Entropy, nats", pattern=r"actor/entropy"),
    Panel(id="kl", title="KL divergence, nats", pattern=r"actor/kl_(old_new|ref)"),
    Panel(id="grad_norm", title="Gradient norm before clipping", pattern=r"(actor|critic)/grad_norm"),
    Panel(id="clip_fraction", title="Share of tokens clipped", pattern=r"actor/clip_fraction", share=True),
    Panel(id="response_length", title="Sampled tokens per trajectory", pattern=r"response_length/(mean|max)"),
    Panel(id="time", title="Seconds per stage", pattern=r"time/(?!step$|tokens_per_second$).+"),
    Panel(id="staleness", title="Staleness, updates", pattern=r"staleness/(mean|max)"),
)
STAGES_SHOWN = 6
"""Most stages of the panel of times, those that take longest; the others take next to nothing."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The points of one figure."""

    name: str
    steps: Sequence[int]
    """Training steps from 0; -1 is the validation before the first."""
    values: Sequence[float | None]
    """None: not a finite number."""


def curves_of(panel: Panel, lines: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """The curves of a panel, in the order of their names; of times the longest."""
    matches: dict[str, bool] = {}
    found: dict[str, tuple[list[int], list[float | None]]] = {}
    for line in lines:
        for name, value in line.items():
            if name not in matches:
                matches[name] = re.fullmatch(panel.pattern, name) is not None
            if matches[name]:
                steps, values = found.setdefault(name, ([], []))
                steps.append(line["step"])
                values.append(rounded(value))
    curves = [Curve(name=name, steps=steps, values=values) for name, (steps, values) in sorted(found.items())]
    if panel.id == "time":
        longest = sorted(curves, key=lambda curve: -sum(value or 0.0 for value in curve.values))
        return longest[:STAGES_SHOWN]
    return curves


def rounded(value: object) -> float | None:
    """To six significant digits; None for what is no finite number."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")
