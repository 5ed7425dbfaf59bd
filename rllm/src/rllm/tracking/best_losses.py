"""The best validation losses of a run that learns from examples, and whether a loss rises again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rllm.runs.validation_metrics import split_validation_name

RISE = 1.01
"""A loss above the best loss times this has risen. Validations use the same rows, so their losses have no noise."""


@dataclass(frozen=True)
class BestLoss:
    """The lowest validation loss of a data source."""

    loss: float
    after: int
    """Number of steps before that validation."""


class BestLosses:
    """The best loss of each data source so far."""

    def __init__(self) -> None:
        self.by_source: dict[str, BestLoss] = {}

    def note(self, finished_steps: int, metrics: Mapping[str, float]) -> BestLoss | None:
        """Compare the losses of a validation with the best ones. Return the best loss of a source whose loss rises."""
        risen = None
        for name, loss in metrics.items():
            source, metric = split_validation_name(name)
            if metric != "loss":
                continue
            best = self.by_source.get(source)
            if best is None or loss < best.loss:
                self.by_source[source] = BestLoss(loss, finished_steps)
            elif loss > best.loss * RISE:
                risen = risen or best
        return risen
