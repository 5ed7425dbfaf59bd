"""`rllm eval`: evaluate a model on environments, without training it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rllm.cli import config_options
from rllm.evaluation.compare_command import compare

if TYPE_CHECKING:
    from rllm.evaluation.rollouts import Job


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
    from rllm.evaluation.report import SCHEMA_VERSION, metrics_as_json, print_metrics
    from rllm.evaluation.saving import saving
    from rllm.evaluation.session import Session
    from rllm.evaluation.stopping import StoppedError
    from rllm.evaluation.words import build_jobs

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
