"""`rllm record check`: whether the record of a run equals its updates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rllm_record.check.findings import Report

SHOWN = 20
"""Problems that are printed."""


@click.group()
def record() -> None:
    """Look at the record of a run (rllm.record)."""


@record.command()
@click.argument("run", type=click.Path(path_type=Path))
def check(run: Path) -> None:
    """Compute the losses of RUN's updates again from its record, and compare.

    RUN is a run folder, or one above it, with a record of rllm.record=tokens. For each optimiser step the loss, what
    each token weighs and its coefficients follow from the recorded log-probs, advantages and settings. Exit code 1:
    they differ, or an update is missing, and the lines name step and token.

    \b
      rllm train guess rllm.record=tokens
      rllm record check runs/rllm-training/default
    """
    from rllm_core.errors import RllmError

    try:
        from rllm_record.check.checking import check_run
    except ModuleNotFoundError as error:
        raise RllmError(
            "missing-package",
            f"Losses are computed by {error.name}, which is not installed.",
            "pip install 'rllm-record[check]'",
        ) from error
    from rllm_record.run_places import one_run

    report = check_run(one_run(run.expanduser()).directory)
    for line in _lines(report):
        click.echo(line)
    if report.problems:
        raise SystemExit(1)


def _lines(report: Report) -> list[str]:
    lines = [each.text for each in report.problems[:SHOWN]]
    if len(report.problems) > SHOWN:
        lines.append(f"and {len(report.problems) - SHOWN} more")
    if report.first_step:
        lines.append(f"recorded from step {report.first_step} on: earlier steps cannot be checked")
    if report.undigested:
        lines.append(f"recorded without digests, so some changes cannot be found: {len(report.undigested)} steps")
    if report.untraced:
        lines.append(f"not recorded by this backend: log-probs and coefficients of {len(report.untraced)} steps")
    if report.unlogged:
        lines.append(f"compared with no loss of metrics.jsonl, which has none of them: {len(report.unlogged)} steps")
    if report.unexplained:
        lines.append(f"not recorded by this backend: the parts of the loss of {report.unexplained} optimiser steps")
    checked = f"{report.optimizer_steps} optimiser steps of {report.steps} steps, {report.tokens} tokens"
    if report.problems:
        lines.append(f"the record differs from the updates in {len(report.problems)} places ({checked})")
    elif report.optimizer_steps:
        lines.append(
            f"the record equals the updates: {checked}; loss within {report.largest_loss_error:.1e}, "
            f"coefficients within {report.largest_coefficient_error:.1e}"
        )
    return lines
