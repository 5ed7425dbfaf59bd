"""Figures on the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from rllm.cli import print_table
from rllm.evaluation.figures import Figures
from rllm.evaluation.statistics import Estimate

SCHEMA_VERSION = 1


def print_figures(figures: Sequence[Figures], best: Mapping[str, Mapping[str, float]]) -> None:
    """One row each, then what the environments count. `best` are the best possible means, by name of the figures."""
    ks = sorted({k for each in figures for k in each.passes})
    headings = ("environment", "tasks", "attempts", *(f"pass@{k}" for k in ks), "reward")
    print_table(headings, [_row(each, ks) for each in figures])
    click.echo(f"\nIntervals are 95 %{_which(figures)}; the task is the unit.")
    for each in figures:
        click.echo(f"{each.name}: {'  '.join(_words(each, best.get(each.name, {})))}")


def _which(figures: Sequence[Figures]) -> str:
    """What the intervals of the table are."""
    of_rewards = {each.reward.interval for each in figures if each.reward is not None}
    if "student" not in of_rewards:
        return ", Wilson's"
    return ", Student's of rewards beyond 0 to 1, Wilson's of all others"


def figures_as_json(figures: Sequence[Figures], best: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Everything, as JSON data."""
    return [
        asdict(each)
        | {"passes": {str(k): asdict(estimate) for k, estimate in each.passes.items()}}
        | {"best_possible": dict(best.get(each.name, {}))}
        for each in figures
    ]


def as_text(estimate: Estimate | None) -> str:
    """``0.207 [0.120, 0.330]``."""
    if estimate is None:
        return "-"
    value = number(estimate.value)
    return value if estimate.low is None else f"{value} [{number(estimate.low)}, {number(estimate.high or 0.0)}]"


def number(value: float, sign: str = "") -> str:
    """``0.312``; from a million on ``2.500e+199``."""
    return f"{value:{sign}.3{'f' if abs(value) < 1e6 else 'e'}}"


def _row(figures: Figures, ks: Sequence[int]) -> tuple[str, ...]:
    largest = max(figures.passes)
    passes = [
        "-"
        if k not in figures.passes
        else as_text(figures.passes[k])
        if k in (1, largest)
        else number(figures.passes[k].value)
        for k in ks
    ]
    return (figures.name, str(figures.tasks), str(figures.attempts), *passes, as_text(figures.reward))


def _words(figures: Figures, best: Mapping[str, float]) -> list[str]:
    words = [f"reward/{role} {number(value)}" for role, value in figures.role_rewards.items()]
    for name, value in figures.metrics.items():
        words.append(f"{name} {number(value)}" + (f" (best possible {number(best[name])})" if name in best else ""))
    if "reward" in best:
        words.append(f"best possible reward {number(best['reward'])}")
    if figures.missing_rewards:
        words.append(f"missing rewards {figures.missing_rewards}")
    words.append(f"response tokens {figures.response_tokens:.1f}")
    return [*words, *(f"{ending} {share:.1%}" for ending, share in figures.endings.items())]
