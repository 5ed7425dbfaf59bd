"""`rllm record check`, `rllm record export` and `rllm replay`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rllm_record.store.fetching import RunPath

if TYPE_CHECKING:
    from rllm_record.check.chain import CheckReport
    from rllm_record.journal.replay import CheckpointComparison

SHOWN = 20
"""Maximum number of problems that are printed."""


@click.group()
def record() -> None:
    """Check the record of a run (rllm.record), and write its episodes for other programs.

    \b
      rllm record check runs/rllm-training/guess-1
      rllm record export runs/rllm-training/guess-1 guess.jsonl --format atif
    """


@record.command()
@click.argument("run", type=RunPath("all"))
def check(run: Path) -> None:
    """Compute the losses of RUN's updates again from its record, and compare them.

    RUN is a run directory, or a directory that contains one run. The run must have been trained with
    rllm.record=tokens. For each optimizer step, the loss, the weight of each token and its coefficients are computed
    again from the recorded log-probs, advantages and settings. Exit code 1 means that a value differs or an update is
    missing. The output then lists the steps and tokens.

    \b
      rllm train guess rllm.record=tokens
      rllm record check runs/rllm-training/guess-1
    """
    from rllm_core.errors import RllmError

    try:
        from rllm_record.check.checking import check_run
    except ModuleNotFoundError as error:
        raise RllmError(
            "missing-package",
            f"`rllm record check` computes losses with {error.name}, which is not installed.",
            "Run: pip install 'rllm-record[check]'",
        ) from error
    from rllm_record.run_files import one_run

    report = check_run(one_run(run.expanduser()).directory)
    for line in _lines(report):
        click.echo(line)
    if report.problems:
        raise SystemExit(1)


@record.command()
@click.argument("source", type=RunPath())
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--format", "name", required=True, metavar="NAME", help="Format of FILE: atif, verifiers.")
def export(source: Path, file: Path, name: str) -> None:
    """Write the episodes of SOURCE to FILE in the format of a different program.

    SOURCE is a run that was trained with rllm.record=tokens, a directory of episodes or of `rllm eval --save`, or a
    file of any format that `rllm view` opens. FILE ends in .jsonl, or in .json for one episode. Values that the format
    has no field for are in its field for extra data, so that reading FILE gives equal episodes.

    \b
      rllm train guess rllm.record=tokens
      rllm record export runs/rllm-training/guess-1 guess.jsonl --format atif
      rllm record export traces.jsonl trajectories.jsonl --format atif
    """
    from rllm_record.interchange.formats import write_file
    from rllm_record.stored_episodes import find_episodes, read_record

    if file.expanduser().exists() and file.expanduser().samefile(source.expanduser()):
        raise click.UsageError("FILE is SOURCE, and would be replaced. Write to a different file.")
    parts = find_episodes(source.expanduser()).files
    number = write_file(file.expanduser(), (each for _, part in parts for each in read_record(part)), name)
    click.echo(f"wrote {number} episodes to {file}")


def _lines(report: CheckReport) -> list[str]:
    lines = [each.text for each in report.problems[:SHOWN]]
    if len(report.problems) > SHOWN:
        lines.append(f"and {len(report.problems) - SHOWN} more")
    if report.first_step:
        lines.append(f"recorded from step {report.first_step} on: earlier steps cannot be checked")
    if report.untraced:
        lines.append(f"not recorded by this backend: log-probs and coefficients of {len(report.untraced)} steps")
    if report.unlogged:
        lines.append(f"not compared with metrics.jsonl, which has no loss for them: {len(report.unlogged)} steps")
    if report.unexplained:
        lines.append(f"not recorded by this backend: the parts of the loss of {report.unexplained} optimizer steps")
    checked = f"{report.optimizer_steps} optimizer steps of {report.steps} steps, {report.tokens} tokens"
    if report.problems:
        lines.append(f"the record differs from the updates in {len(report.problems)} places ({checked})")
    elif report.optimizer_steps:
        lines.append(
            f"the record equals the updates: {checked}; loss within {report.largest_loss_error:.1e}, "
            f"coefficients within {report.largest_coefficient_error:.1e}"
        )
    if report.compared_logprobs and not report.problems:
        lines.append(
            f"log-probs of sampler and trainer, where both had the same weights: {report.compared_logprobs} tokens, "
            f"largest difference {report.largest_logprob_difference:.2g}"
        )
    return lines


@click.command()
@click.argument("run", type=RunPath("all"))
def replay(run: Path) -> None:
    """Repeat the updates of RUN from its journal, and compare the weights.

    RUN is a run directory with a journal of the whole run: rllm.trainer.observers=[{name: journal, keep: run}]. The
    workflow runs again with the responses in the journal, so nothing is sampled. RUN is only read. Exit code 1 means
    that the weights of a checkpoint differ.

    \b
      rllm train guess 'rllm.trainer.observers=[{name: journal, keep: run}]' rllm.trainer.save_freq=20
      rllm replay runs/rllm-training/guess-1
    """
    from rllm_record.journal.replay import replay as replayed

    checkpoints = replayed(run.expanduser(), lambda compared: click.echo(_line(compared)))
    differing = [compared.step for compared in checkpoints if compared.differing]
    if differing:
        click.echo(f"checkpoints with other weights: {len(differing)}, the first after {differing[0]} steps")
        raise SystemExit(1)
    click.echo(f"checkpoints: {len(checkpoints)}, all with the same weights")


def _line(compared: CheckpointComparison) -> str:
    after = f"after {compared.step} steps"
    return f"{after}: other {', '.join(compared.differing)}" if compared.differing else f"{after}: the same weights"
