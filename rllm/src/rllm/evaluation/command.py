"""`rllm eval`: evaluate a model on environments, without training it. `rllm eval compare`: pair two by task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rllm.cli import config_options

if TYPE_CHECKING:
    from rllm.evaluation.comparing import Comparison, Difference
    from rllm.evaluation.plans import Job


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
    from rllm_record.terminal import print_table

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


class EvalCommand(click.Command):
    """`rllm eval ENV …`, with the subcommand `rllm eval compare …`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == [compare.name]:
            return compare.make_context(f"{info_name} {compare.name}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command("eval", cls=EvalCommand, epilog="Compare two saved evaluations: rllm eval compare --help")
@config_options("backend", "profile", "seed", "val-data", "reward", "tools", "agent", "sandbox")
@click.option("--model-name", metavar="NAME", help="Name of the model at the server, if --model is an address.")
@click.option(
    "--save",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIRECTORY",
    help="Save every rollout in DIRECTORY as it ends. Run the same command again to continue after a stop.",
)
@click.option("--show", type=click.IntRange(min=1), metavar="N", help="Print the first N rollouts of each ENV.")
@click.option("--json", "as_json", is_flag=True, help="Print all metrics as JSON.")
def evaluate(
    words: tuple[str, ...],
    model: str | None,
    files: tuple[str, ...],
    model_name: str | None,
    save: Path | None,
    show: int | None,
    as_json: bool,
    **flags: Any,
) -> int:
    """Run all validation tasks of each ENV and report pass@1, pass@k and reward, with 95 % intervals.

    \b
    Evaluate several environments, one row each:
      rllm eval guess sum --model tiny
    Evaluate a run's newest checkpoint, with the run's config:
      rllm eval guess --model runs/rllm-training/guess-1
    Use a different backend than in training:
      rllm eval guess --backend local --model runs/rllm-training/guess-1
    Run more rollouts per task:
      rllm eval guess --model ./some-hf-directory rllm.rollout.n_val=64
    Evaluate on questions in a file:
      rllm eval question --data val.jsonl --reward exact --model ./some-hf-directory
    Print rollouts turn by turn:
      rllm eval guess --model ./some-hf-directory --show 3
    Save the rollouts, and continue after Ctrl-C or a crash:
      rllm eval guess --model ./some-hf-directory --save evals/first
    Evaluate a model at an OpenAI-compatible server:
      rllm eval guess --model http://127.0.0.1:8000/v1 --model-name NAME
    """
    import json

    from rllm.evaluation.games import Games
    from rllm.evaluation.metrics import compute_metrics
    from rllm.evaluation.plans import build_jobs
    from rllm.evaluation.report import SCHEMA_VERSION, metrics_as_json, print_metrics
    from rllm.evaluation.saving import saving
    from rllm.evaluation.session import Session
    from rllm.evaluation.stopping import StoppedError

    jobs = build_jobs(words, model, model_name, files, flags)
    for job in jobs:
        _announce(job)
    games = None if show is None else Games(show)
    with nullcontext() if save is None else saving(save, jobs) as keeper:
        session = Session(jobs, keeper, games)
        if keeper is not None and session.finished_count:
            click.echo(f"{save} has {session.finished_count} rollouts; {session.missing} are missing", err=True)
        code = 0
        try:
            session.run()
        except StoppedError as error:
            code = error.exit_code
    for line in () if games is None else games.lines():
        # With --json, stdout must contain only the JSON.
        click.echo(line, err=as_json)
    metrics = [each for name, outcomes in session.outcomes.items() for each in compute_metrics(name, outcomes)]
    best = {job.name: _best_possible(job) for job in jobs}
    if as_json:
        data = {"schema_version": SCHEMA_VERSION, "missing_rollouts": session.missing}
        click.echo(json.dumps(data | {"environments": metrics_as_json(metrics, best)}, indent=1))
    elif metrics:
        print_metrics(metrics, best)
    if not code:
        return 0
    remedy = "" if save is None else f". Run the same command again to continue from {save}"
    click.echo(f"stopped: {session.missing} rollouts are missing{remedy}", err=True)
    return code


def _announce(job: Job) -> None:
    config = f"the config of {job.evaluation.run}" if job.evaluation.run else "no run's config"
    click.echo(f"evaluating {job.name} with model {job.evaluation.model} and {config}", err=True)


def _best_possible(job: Job) -> dict[str, float]:
    """Return the environment's best values, or nothing if the user added rewards, because these change the maximum."""
    plan = job.evaluation.plan
    return dict(plan.environment.plugin.best_possible) if plan.environment and not plan.rewards else {}
