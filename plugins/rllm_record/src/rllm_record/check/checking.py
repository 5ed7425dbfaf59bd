"""Compares a record with what follows from it, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_backend_kit.role_losses import RoleLosses
from rllm_backend_kit.update_trace import Coefficients
from rllm_core.runs.metrics_file import METRICS, read_metrics
from rllm_record.check.findings import Report
from rllm_record.check.recomputing import OptimizerRows, expected_weights, plan_of, recomputed
from rllm_record.steps.errors import RecordError
from rllm_record.steps.files import FOLDER, StepFiles

LOSS_TOLERANCE = 1e-6
"""Of a loss of 1 or less; in proportion to the size of its terms above that."""
COEFFICIENT_TOLERANCE = 1e-5
"""Of the largest coefficient of the optimiser step."""
SHOWN = 3
"""Tokens of an optimiser step that are named."""


def check_run(folder: Path) -> Report:
    """Check the record in a run folder.

    Raises:
        RecordError: there is none with tokens, no step of it was trained on, or a file cannot be read.
    """
    files = StepFiles(folder / FOLDER)
    steps = files.steps()
    if not steps:
        raise RecordError(f"{folder} has no record.", "A run keeps one with rllm.record=tokens.")
    with_tokens = [step for step in steps if files.has_update(step) or files.holds_tokens(step)]
    if not with_tokens:
        raise RecordError(f"The record of {folder} has no updates.", "A run records them with rllm.record=tokens.")
    logged = _logged_losses(folder)
    report, losses = Report(), RoleLosses()
    for step in with_tokens:
        if files.has_update(step):
            report.steps += 1
            report.problems += _check_step(files, step, logged.get(step), report, losses)
        elif trained := _trained(files, step):
            report.problems.append(
                f"step {step}: its update is not recorded, and it trained on {len(trained)} trajectories"
            )
    if not report.steps and not report.problems:
        raise RecordError(
            f"In {folder} no step was trained on: there is no update to check.",
            "`rllm view` shows what became of its trajectories.",
        )
    return report


def _check_step(files: StepFiles, step: int, logged: float | None, report: Report, losses: RoleLosses) -> Iterator[str]:
    rows = files.trace_table(step).to_pylist()
    updates = files.update_table(step).to_pylist()
    yield from _missing(files, step, rows)
    if not updates or rows[0]["epoch"] is None:
        report.untraced.append(step)
        return
    objective = files.objective(step)
    plan = plan_of(objective, step)
    for update in updates:
        number = update["optimizer_step"]
        where = f"step {step}, optimiser step {number}"
        these = OptimizerRows([row for row in rows if row["optimizer_step"] == number])
        if not these.rows:
            yield f"{where}: no token is recorded"
            continue
        report.tokens += sum(these.lengths)
        yield from _check_weights(these, objective, where)
        if update["policy_loss"] is None:
            report.unexplained += 1
            continue
        found = recomputed(these, plan, update["loss_seed"] or 0, losses)
        if found is not None:
            report.optimizer_steps += 1
            yield from _check_loss(update, found, where, report)
            yield from _check_coefficients(these, found, where, report)
    known = [update["loss"] for update in updates if update["loss"] is not None]
    if logged is None:
        report.unlogged.append(step)
    elif len(known) == len(updates):
        yield from _differs(f"step {step}: actor/loss in {METRICS}", logged, float(np.mean(known)), 1.0)


def _missing(files: StepFiles, step: int, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Trajectories that were trained on by their fates and have no row, or the other way round."""
    trained = _trained(files, step)
    traced = {row["trajectory"] for row in rows}
    for uid in sorted(trained ^ traced):
        yield f"step {step}: {uid} is {'trained on, and has no trace' if uid in trained else 'traced, and not trained'}"


def _trained(files: StepFiles, step: int) -> set[str]:
    """Uids of the trajectories that were trained on by their fates."""
    return {each.fate.trajectory for each in files.fates(step) if each.fate.fate == "trained"}


def _check_weights(step: OptimizerRows, objective: Mapping[str, Any], where: str) -> Iterator[str]:
    recorded = step.column("weight")
    if recorded is None:
        return
    expected = expected_weights(step, objective)
    yield from _unequal(step, "weight", recorded, expected, LOSS_TOLERANCE * float(np.abs(expected).max()), where)


def _check_loss(update: Mapping[str, Any], found: Coefficients, where: str, report: Report) -> Iterator[str]:
    parts = {"policy_loss": found.policy_loss, "kl_loss": found.kl_loss, "entropy_loss": found.entropy_loss}
    size = max(1.0, found.size)
    for name, value in ({"loss": sum(parts.values())} | parts).items():
        if update[name] is not None:
            report.largest_loss_error = max(report.largest_loss_error, abs(value - update[name]) / size)
            yield from _differs(f"{where}: {name}", update[name], value, size)


def _differs(what: str, recorded: float, value: float, size: float) -> Iterator[str]:
    if not abs(value - recorded) <= LOSS_TOLERANCE * size:
        yield f"{what} is {recorded:.9g}, and {value:.9g} follows from the record"


def _check_coefficients(step: OptimizerRows, found: Coefficients, where: str, report: Report) -> Iterator[str]:
    for name in ("policy_part", "kl_part", "entropy_part"):
        recorded, expected = step.column(name), getattr(found, name).numpy()
        if recorded is None:
            continue
        size = float(np.abs(expected).max())
        error = float(np.abs(recorded - expected).max())
        report.largest_coefficient_error = max(report.largest_coefficient_error, error / size if size else error)
        yield from _unequal(step, name, recorded, expected, COEFFICIENT_TOLERANCE * size, where)


def _unequal(
    step: OptimizerRows,
    name: str,
    recorded: NDArray[np.float32],
    expected: NDArray[np.float32],
    tolerance: float,
    where: str,
) -> Iterator[str]:
    wrong = np.flatnonzero(~(np.abs(recorded - expected) <= tolerance))
    owners = np.repeat(np.arange(len(step.rows)), step.lengths)
    positions = np.concatenate([row["positions"] for row in step.rows])
    for token in wrong[:SHOWN]:
        row = step.rows[owners[token]]
        place = f"{row['trajectory']}, segment {row['segment']}, position {positions[token]}"
        yield f"{where}, {place}: {name} is {recorded[token]:.9g}, and {expected[token]:.9g} follows from the record"
    if len(wrong) > SHOWN:
        yield f"{where}: {name} of {len(wrong) - SHOWN} more tokens"


def _logged_losses(folder: Path) -> dict[int, float]:
    """``actor/loss`` by step; empty where there is no file of metrics."""
    return {line["step"]: line["actor/loss"] for line in read_metrics(folder) if "actor/loss" in line}
