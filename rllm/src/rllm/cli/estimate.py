"""Estimate of a run's time, tokens and cost for `--dry-run`, from the metrics of an earlier run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from rllm.planning.plan import RunPlan
from rllm.runs.run_directory import run_directory_path
from rllm.training.starting import latest_name
from rllm_core.errors import RllmError
from rllm_core.schema.run_sections import TrainerSection
from rllm_record.run_files import read_metrics

TIME, SPEED, TRAINED = "time/step", "time/tokens_per_second", "budget/trained_tokens"
SECONDS_PER_HOUR, MILLION = 3600.0, 1_000_000


@dataclass(frozen=True, kw_only=True)
class StepMeans:
    """Means over the steps of an earlier run, without its first step, which also loads and compiles."""

    steps: int
    seconds: float
    sampled: float
    """Tokens of training rollouts."""
    trained: float | None
    """Tokens of updates. None if the run had no budget, so they were not counted."""

    @classmethod
    def from_metrics(cls, lines: Sequence[Mapping[str, Any]]) -> StepMeans | None:
        """Return the means of a run's metrics. None if the run has fewer than two steps."""
        steps = [line for line in lines if isinstance(line.get(TIME), float) and isinstance(line.get(SPEED), float)]
        if len(steps) < 2:
            return None
        counted = [line[TRAINED] for line in steps if isinstance(line.get(TRAINED), float)]
        later = steps[1:]
        return cls(
            steps=len(later),
            seconds=mean(line[TIME] for line in later),
            sampled=mean(line[TIME] * line[SPEED] for line in later),
            trained=(counted[-1] - counted[0]) / (len(counted) - 1) if len(counted) > 1 else None,
        )


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The whole run's time, tokens and cost, without validation."""

    steps: int
    """Number of steps of the run."""
    run: str
    """Directory of the earlier run."""
    measured_steps: int
    hours: float
    sampled_tokens: float
    trained_tokens: float | None
    """None if the earlier run did not count them."""
    cost: float | None
    """In the currency of the prices. None without prices."""

    def lines(self) -> Iterator[str]:
        """Yield the lines to print."""
        steps = "1 step" if self.measured_steps == 1 else f"{self.measured_steps} steps"
        trained = "not counted in that run" if self.trained_tokens is None else f"{self.trained_tokens:,.0f}"
        yield f"Estimate for {self.steps:,} steps, from {steps} of {self.run}, without validation:"
        yield f"  time            {self.hours:,.2f} hours"
        yield f"  sampled tokens  {self.sampled_tokens:,.0f}"
        yield f"  trained tokens  {trained}"
        if self.cost is not None:
            yield f"  cost            {self.cost:,.2f}"


def estimate_run(plan: RunPlan, steps_per_epoch: int | None) -> Estimate | None:
    """Return the estimate for a run. None if no earlier run of this name or environment has two steps.

    Args:
        plan: the run.
        steps_per_epoch: number of steps of an epoch. None without a number of tasks.
    """
    trainer = plan.config.rllm.trainer
    found = _find_run(plan)
    total = trainer.total_batches if trainer.total_batches > 0 else (steps_per_epoch or 0) * trainer.total_epochs
    means = None if found is None else _read_means(found)
    if means is None or not total or trainer.val_only:
        return None
    hours, sampled = total * means.seconds / SECONDS_PER_HOUR, total * means.sampled
    trained = None if means.trained is None else total * means.trained
    return Estimate(
        steps=total,
        run=str(found),
        measured_steps=means.steps,
        hours=hours,
        sampled_tokens=sampled,
        trained_tokens=trained,
        cost=None if trainer.prices.are_zero else _cost(trainer, hours, sampled, trained or 0.0),
    )


def _cost(trainer: TrainerSection, hours: float, sampled: float, trained: float) -> float:
    prices = trainer.prices
    tokens = sampled * prices.sampled_per_million + trained * prices.trained_per_million
    return hours * prices.per_hour + tokens / MILLION


def _find_run(plan: RunPlan) -> Path | None:
    """Return the run with this name, or the environment's numbered run that was started last."""
    named = run_directory_path(plan.config.rllm.trainer)
    if named.is_dir():
        return named
    name = latest_name(named.parent, plan.config.rllm.env.name)
    return None if name is None else named.parent / name


def _read_means(run: Path) -> StepMeans | None:
    try:
        return StepMeans.from_metrics(read_metrics(run))
    except RllmError:
        return None  # A damaged file of an earlier run does not matter for this one.
