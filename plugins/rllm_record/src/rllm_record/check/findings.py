"""The findings of `rllm record check`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Mismatch:
    """A difference between a record and the updates of its run."""

    code: str
    """Code of the finding, in the style of an `RllmError` code."""
    text: str
    """Description with the step, the optimizer step and the token."""


@dataclass
class Report:
    """The findings for a whole run."""

    first_step: int = 0
    """First recorded step. It is not 0 if recording started when the run was resumed."""
    steps: int = 0
    """Number of training steps that made an update."""
    optimizer_steps: int = 0
    """Number of optimizer steps whose loss was computed again."""
    tokens: int = 0
    """Number of trained tokens, counted once per epoch."""
    largest_loss_error: float = 0.0
    largest_coefficient_error: float = 0.0
    """Largest error of a coefficient, relative to the largest coefficient of its optimizer step."""
    untraced: list[int] = field(default_factory=list)
    """Steps for which the backend recorded no trace."""
    unlogged: list[int] = field(default_factory=list)
    """Steps with an update whose loss is not in the run's metrics, so that it could not be compared."""
    undigested: list[int] = field(default_factory=list)
    """Steps without digests of their files, because an older rllm-record wrote them."""
    unexplained: int = 0
    """Number of optimizer steps with a loss that has no value per token."""
    problems: list[Mismatch] = field(default_factory=list)
