"""Print metrics on the terminal, or convert them to JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from rllm.evaluation.metrics import Metrics
from rllm.evaluation.statistics import Estimate
from rllm_record.terminal import print_table

SCHEMA_VERSION = 1


def print_metrics(metrics: Sequence[Metrics], best: Mapping[str, Mapping[str, float]]) -> None:
    """Print one row each, then the environments' own metrics. `best` has the best possible means, by metric name."""
    ks = sorted({k for each in metrics for k in each.passes})
    headings = ("environment", "tasks", "rollouts", *(f"pass@{k}" for k in ks), "reward")
    print_table(headings, [_row(each, ks) for each in metrics])
    click.echo(f"\nIntervals are 95 %{_which(metrics)}; the task is the unit.")
    for each in metrics:
        click.echo(f"{each.name}: {'  '.join(_words(each, best.get(each.name, {})))}")
    for each in metrics:
        if each.missing_rewards:
            missing = f"{each.missing_rewards} of {each.rollouts} rollouts have no reward, and count as not solved."
            cause = f" The first cause: {each.reward_error}" if each.reward_error else ""
            click.echo(f"warning: {each.name}: {missing}{cause}", err=True)


def _which(metrics: Sequence[Metrics]) -> str:
    """Return the names of the methods for the table's intervals."""
    of_rewards = {each.reward.interval for each in metrics if each.reward is not None}
    if "student" not in of_rewards:
        return ", Wilson's"
    return ", Student's of rewards beyond 0 to 1, Wilson's of all others"


def metrics_as_json(metrics: Sequence[Metrics], best: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return all metrics as JSON data."""
    return [
        asdict(each)
        | {"passes": {str(k): asdict(estimate) for k, estimate in each.passes.items()}}
        | {"best_possible": dict(best.get(each.name, {}))}
        for each in metrics
    ]


def as_text(estimate: Estimate | None) -> str:
    """Return an estimate with its interval, such as ``0.207 [0.120, 0.330]``."""
    if estimate is None:
        return "-"
    value = number(estimate.value)
    return value if estimate.low is None else f"{value} [{number(estimate.low)}, {number(estimate.high or 0.0)}]"


def number(value: float, sign: str = "") -> str:
    """Return a number with three decimals, such as ``0.312``. From a million on, use ``2.500e+199``."""
    return f"{value:{sign}.3{'f' if abs(value) < 1e6 else 'e'}}"


def _row(metrics: Metrics, ks: Sequence[int]) -> tuple[str, ...]:
    largest = max(metrics.passes)
    passes = [
        "-"
        if k not in metrics.passes
        else as_text(metrics.passes[k])
        if k in (1, largest)
        else number(metrics.passes[k].value)
        for k in ks
    ]
    return (metrics.name, str(metrics.tasks), str(metrics.rollouts), *passes, as_text(metrics.reward))


def _words(metrics: Metrics, best: Mapping[str, float]) -> list[str]:
    words = [f"reward/{role} {number(value)}" for role, value in metrics.role_rewards.items()]
    for name, value in metrics.metrics.items():
        words.append(f"{name} {number(value)}" + (f" (best possible {number(best[name])})" if name in best else ""))
    if "reward" in best:
        words.append(f"best possible reward {number(best['reward'])}")
    words.append(f"response tokens {metrics.response_tokens:.1f}")
    return [*words, *(f"{reason} {share:.1%}" for reason, share in metrics.endings.items())]
