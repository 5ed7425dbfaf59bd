"""What `rllm record check` finds."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Mismatch:
    """One place where a record differs from the updates of its run."""

    code: str
    """The short name of the finding, as of an `RllmError`."""
    text: str
    """A sentence that names step, optimiser step and token."""


@dataclass
class Report:
    """Of a whole run."""

    first_step: int = 0
    """The first recorded step: recording may begin when a run is resumed."""
    steps: int = 0
    """Training steps that made an update."""
    optimizer_steps: int = 0
    """Those whose loss was computed again."""
    tokens: int = 0
    """Trained tokens, counted once per epoch."""
    largest_loss_error: float = 0.0
    largest_coefficient_error: float = 0.0
    """In proportion to the largest coefficient of the optimiser step."""
    untraced: list[int] = field(default_factory=list)
    """Steps of which the backend traced nothing."""
    unlogged: list[int] = field(default_factory=list)
    """Steps with an update whose loss is not in the run's metrics: there it is compared with nothing."""
    undigested: list[int] = field(default_factory=list)
    """Steps that an older rllm-record wrote, without digests of their files."""
    unexplained: int = 0
    """Optimiser steps with a loss that gives no number per token."""
    problems: list[Mismatch] = field(default_factory=list)
