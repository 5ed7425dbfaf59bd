"""The learning rate over a run, the same for every backend."""

from __future__ import annotations

import math
from typing import Literal, Protocol


class LearningRateSettings(Protocol):
    """The part of a backend's section ``training`` that says how the learning rate goes."""

    @property
    def learning_rate(self) -> float:
        """The learning rate after warm-up."""

    @property
    def lr_schedule(self) -> Literal["constant", "linear", "cosine"]:
        """The schedule after warm-up."""

    @property
    def warmup_steps_ratio(self) -> float:
        """Share of the run in which the learning rate rises, in [0, 1]."""


def learning_rate(settings: LearningRateSettings, global_step: int, total_steps: int) -> float:
    """Learning rate of one training step, counted from 0.

    It rises linearly over the first `warmup_steps_ratio` of the run, from a positive value at step 0, then stays, or
    falls to 0 along a line or half a cosine.
    """
    warmup_steps = round(settings.warmup_steps_ratio * total_steps)
    if global_step < warmup_steps:
        return settings.learning_rate * (global_step + 1) / warmup_steps
    progress = min(1.0, (global_step - warmup_steps) / max(1, total_steps - warmup_steps))
    match settings.lr_schedule:
        case "constant":
            factor = 1.0
        case "linear":
            factor = 1.0 - progress
        case "cosine":
            factor = 0.5 * (1.0 + math.cos(math.pi * progress))
    return settings.learning_rate * factor
