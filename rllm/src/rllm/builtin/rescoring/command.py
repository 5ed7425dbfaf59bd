"""`rllm rescore`: the advantages of stored episodes under other estimators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("episodes", type=click.Path(path_type=Path))
@click.option(
    "--estimator",
    "estimators",
    multiple=True,
    metavar="NAME",
    help="Estimator. May be repeated. The first estimator is the reference.",
)
@click.option("--grouping", metavar="NAME", help="Trajectory grouping, instead of the run's.")
@click.option("--json", "is_json", is_flag=True, help="Print the advantages of all trajectories as JSON.")
def rescore(episodes: Path, estimators: tuple[str, ...], grouping: str | None, is_json: bool) -> None:
    """Show the advantages of stored EPISODES with other estimators.

    EPISODES is a run directory, its episodes/ directory, or one file. Nothing is generated, trained or written. With
    fewer than two --estimator, the run's own estimator is the reference.

    \b
    A run keeps its episodes with rllm.record=tokens. Then:
      rllm rescore runs/rllm-training/guess-1 --estimator rloo
    With options, as in a configuration:
      rllm rescore RUN --estimator grpo --estimator '{name: grpo, norm_adv_by_std_in_grpo: false}'
    """
    import asyncio
    import json

    from rllm.builtin.rescoring.estimators import rescore
    from rllm.builtin.rescoring.report import as_json, print_report

    names = [_choice("estimator", name) for name in estimators]
    result = asyncio.run(rescore(episodes.expanduser(), names, grouping and _choice("grouping", grouping)))
    if is_json:
        click.echo(json.dumps(as_json(result), indent=1))
    else:
        print_report(result)


def _choice(kind: str, written: str) -> Any:
    """Read a name, or a mapping with options, as on the command line of a run."""
    from rllm.config import read_override

    return read_override(f"{kind}={written}")[1]
