"""`rllm eval compare`: two saved evaluations, paired by task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rllm.evaluation.comparing import Comparison, Difference

DIRECTORY = click.Path(path_type=Path, file_okay=False)


@click.command("compare")
@click.argument("first", type=DIRECTORY)
@click.argument("second", type=DIRECTORY)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def compare(first: Path, second: Path, as_json: bool) -> None:
    """Compare two saved evaluations of the same tasks: SECOND minus FIRST, with a 95 % interval and a p-value.

    \b
      rllm eval guess --model tiny --save evals/before
      rllm eval guess --model runs/rllm-training/guess-1 --save evals/after
      rllm eval compare evals/before evals/after
    """
    import json
    from dataclasses import asdict

    from rllm.evaluation.comparing import compare as compare_saved
    from rllm.evaluation.report import SCHEMA_VERSION

    found = compare_saved(first, second)
    for directory, names in found.only.items():
        if names:
            click.echo(f"not compared: {', '.join(names)} (only in {directory})", err=True)
    if as_json:
        data: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
        data["models"] = [
            {"name": each.model, "weights": each.weights and asdict(each.weights)} for each in found.models
        ]
        data["environments"] = [asdict(each) for each in found.environments]
        click.echo(json.dumps(data, indent=1))
        return
    for name, model in zip(("first", "second"), found.models, strict=True):
        click.echo(f"{name}: {model.shown_model}")
    _print(found.environments)


def _print(comparisons: Sequence[Comparison]) -> None:
    from rllm.cli import print_table

    headings = ("environment", "tasks", "metric", "first", "second", "difference", "p")
    print_table(headings, [row for comparison in comparisons for row in _rows(comparison)])
    click.echo(
        "\nIntervals are 95 % (Student's, or Tango's if no task differs). p comes from a sign-flip test. "
        "Both are paired by task."
    )


def _rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    named = {"pass@1": comparison.passed, "reward": comparison.reward}
    for metric, difference in named.items():
        if difference is not None:
            yield (comparison.environment, str(comparison.tasks), metric, *_cells(difference))


def _cells(difference: Difference) -> tuple[str, ...]:
    from rllm.evaluation.report import number

    estimate = difference.difference
    interval = "" if estimate.low is None else f" [{number(estimate.low, '+')}, {number(estimate.high or 0.0, '+')}]"
    p = f"{difference.p:.3f}" if difference.p >= 0.001 else f"{difference.p:.1e}"
    return number(difference.first), number(difference.second), f"{number(estimate.value, '+')}{interval}", p
