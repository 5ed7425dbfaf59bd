"""Checks of gradient norms, clipping factors and learning rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rllm.runs.metrics_file import METRICS
from rllm_record.check.findings import Mismatch

LOGGED = {"grad_norm": "actor/grad_norm", "learning_rate": "actor/lr"}
"""Column of `UPDATES` -> the metric that is its mean."""
TOLERANCE = 1e-6
ADDED = (1e-6, 0.0)
"""Numbers that clipping functions add to a norm before they divide by it: 1e-6 in torch, 0 elsewhere."""


def check_logged(step: int, updates: Sequence[Mapping[str, Any]], logged: Mapping[str, float]) -> Iterator[Mismatch]:
    """Check that the logged metrics are the means over the optimizer steps."""
    for column, metric in LOGGED.items():
        values = [update[column] for update in updates]
        if metric in logged and values and None not in values:
            mean = float(np.mean(values))
            if not abs(mean - logged[metric]) <= TOLERANCE * abs(mean):
                yield Mismatch(
                    "metric-mismatch",
                    f"step {step}: {metric} in {METRICS} is {logged[metric]:.9g}, but {mean:.9g} follows from updates",
                )


def check_clipping(updates: Mapping[str, Mapping[str, Any]]) -> Iterator[Mismatch]:
    """Check that all clipped gradients of a run were scaled down to the same norm.

    Args:
        updates: name for the message -> row of `UPDATES`.
    """
    known = {name: row for name, row in updates.items() if row["grad_norm"] and row["clip_factor"] is not None}
    if not known:
        return
    norms = np.array([row["grad_norm"] for row in known.values()])
    factors = np.array([row["clip_factor"] for row in known.values()])
    clipped = factors != 1.0
    wrong = ~((factors > 0) & (factors <= 1))
    if clipped.any():
        # The right addition is the one with the fewest differing gradients.
        found = [_differing(factors, norms + added, clipped) for added in ADDED]
        wrong |= min(found, key=np.sum)
    for index in np.flatnonzero(wrong):
        name = list(known)[index]
        yield Mismatch(
            "clipping-mismatch",
            f"{name}: clip_factor {factors[index]:.9g} does not follow from grad_norm {norms[index]:.9g}",
        )


def _differing(factors: Any, norms: Any, clipped: Any) -> Any:
    """Return (n,) bools, True for gradients whose clipping limit differs from the median."""
    limit = float(np.median((factors * norms)[clipped]))
    expected = np.minimum(1.0, limit / norms)
    return np.abs(factors - expected) > TOLERANCE * expected
