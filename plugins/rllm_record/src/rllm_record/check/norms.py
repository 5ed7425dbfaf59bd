"""Checks of gradient norms, factors of clipping and learning rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rllm.runs.metrics_file import METRICS
from rllm_record.check.findings import Mismatch

LOGGED = {"grad_norm": "actor/grad_norm", "learning_rate": "actor/lr"}
"""Columns of `UPDATES`, and the metrics that are their means."""
TOLERANCE = 1e-6
ADDED = (1e-6, 0.0)
"""Numbers that clippers add to a norm before they divide by it: torch's, and none."""


def check_logged(step: int, updates: Sequence[Mapping[str, Any]], logged: Mapping[str, float]) -> Iterator[Mismatch]:
    """The numbers of the optimiser steps have the means that were logged."""
    for column, metric in LOGGED.items():
        values = [update[column] for update in updates]
        if metric in logged and values and None not in values:
            mean = float(np.mean(values))
            if not abs(mean - logged[metric]) <= TOLERANCE * abs(mean):
                yield Mismatch(
                    "metric-mismatch",
                    f"step {step}: {metric} in {METRICS} is {logged[metric]:.9g}, and {mean:.9g} follows from updates",
                )


def check_clipping(updates: Mapping[str, Mapping[str, Any]]) -> Iterator[Mismatch]:
    """All gradients of a run were scaled down to the same norm.

    Args:
        updates: rows of `UPDATES`, by a name for the message.
    """
    known = {name: row for name, row in updates.items() if row["grad_norm"] and row["clip_factor"] is not None}
    if not known:
        return
    norms = np.array([row["grad_norm"] for row in known.values()])
    factors = np.array([row["clip_factor"] for row in known.values()])
    clipped = factors != 1.0
    wrong = ~((factors > 0) & (factors <= 1))
    if clipped.any():
        # With the right addition fewest differ from the others.
        found = [_differing(factors, norms + added, clipped) for added in ADDED]
        wrong |= min(found, key=np.sum)
    for index in np.flatnonzero(wrong):
        name = list(known)[index]
        yield Mismatch(
            "clipping-mismatch",
            f"{name}: clip_factor {factors[index]:.9g} does not follow from grad_norm {norms[index]:.9g}",
        )


def _differing(factors: Any, norms: Any, clipped: Any) -> Any:
    """(n,) True for gradients whose clipping has a different limit than most."""
    limit = float(np.median((factors * norms)[clipped]))
    expected = np.minimum(1.0, limit / norms)
    return np.abs(factors - expected) > TOLERANCE * expected
