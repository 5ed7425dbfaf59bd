"""Compare the recorded values of each step with values that are computed again from the record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_backend_kit.loss import RoleLosses
from rllm_backend_kit.update_trace import Coefficients, coefficients
from rllm_core.contracts.backend import KlTerm, RolloutCorrection, UpdatePlan
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.loss import LossInput
from rllm_core.errors import RllmError
from rllm_core.plugins import resolve
from rllm_core.updates.aggregation import token_weights
from rllm_record.check.chain import (
    CheckReport,
    Mismatch,
    RecordedSteps,
    changed_files,
    check_ids,
    check_metrics,
    check_traces,
    compare_logprobs,
)
from rllm_record.run_files import METRICS, read_metrics
from rllm_record.steps.files import DIRECTORY, StepFiles
from rllm_record.steps.parquet import RecordError

Row = Mapping[str, Any]
"""A row of `TRACES`."""
RECORDED = {
    "old_logprobs": "old_logprob",
    "advantages": "advantage",
    "sampling_logprobs": "rollout_logprob",
    "ref_logprobs": "ref_logprob",
}
"""Column of a `LossInput` -> its name in `TRACES`."""


def plan_of(objective: Mapping[str, Any], step: int) -> UpdatePlan:
    """Return the plan of an update, with the fields that its loss depends on.

    Raises:
        PluginError: one of its losses is not installed.
    """
    losses = {}
    for role, loss in objective["losses"].items():
        registered = resolve("loss", loss["name"])
        losses[role] = PluginChoice(registered=registered, params=registered.plugin.params(**loss["params"]))
    kl, correction = objective["kl"], objective["rollout_correction"]
    return UpdatePlan(
        global_step=step,
        losses=losses,
        aggregation=objective["aggregation"],
        entropy_coeff=objective["entropy_coeff"],
        seed=0,
        kl=None if kl is None else KlTerm(**kl),
        rollout_correction=None if correction is None else RolloutCorrection(**correction),
    )


@dataclass(frozen=True, eq=False)
class OptimizerRows:
    """The rows of one optimizer step, in the order of the batch. Columns are concatenated over the rows."""

    rows: Sequence[Row]

    @property
    def lengths(self) -> list[int]:
        """(n_row,) number of trained tokens of each row."""
        return [len(row["positions"]) for row in self.rows]

    def column(self, name: str) -> NDArray[np.float32] | None:
        """Return a column of the tokens, (n,) float32. None if a row does not have it."""
        values = [row[name] for row in self.rows]
        if any(each is None for each in values):
            return None
        return np.concatenate([np.array(each, np.float32) for each in values])

    def tensor(self, name: str) -> Tensor | None:
        """Return `column` as a torch tensor."""
        values = self.column(name)
        return None if values is None else torch.from_numpy(values)


class _Roles:
    """Role of each row of the batch. Rows that are missing here have the first role."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.roles = tuple(dict.fromkeys(row["role"] for row in rows))
        self.role = np.zeros(max(row["row"] for row in rows) + 1, np.int32)
        for row in rows:
            self.role[row["row"]] = self.roles.index(row["role"])


def recompute_loss(step: OptimizerRows, plan: UpdatePlan, seed: int, losses: RoleLosses) -> Coefficients | None:
    """Return the loss and the coefficients of an optimizer step. None if a required column is not recorded."""
    logprobs, weights = step.tensor("logprob"), step.tensor("weight")
    if logprobs is None or weights is None or step.column("old_logprob") is None or step.column("advantage") is None:
        return None
    numbers = np.array([row["row"] for row in step.rows], np.int64)
    row_ids = torch.from_numpy(np.repeat(numbers, step.lengths))
    inputs = LossInput.from_columns(logprobs, row_ids, lambda name: step.tensor(RECORDED[name]), seed)
    return coefficients(_Roles(step.rows), inputs, step.tensor("entropy"), weights, plan, losses)


def expected_weights(step: OptimizerRows, objective: Mapping[str, Any]) -> NDArray[np.float32]:
    """Return the (n,) weights of the tokens in the loss, from the aggregation of the run."""
    lengths = np.array(step.lengths, np.int64)
    return token_weights(objective["aggregation"], lengths, objective["max_response_length"])


LOSS_TOLERANCE = 1e-6
"""Absolute tolerance of a loss up to 1, and relative to the size of its terms above that."""
COEFFICIENT_TOLERANCE = 1e-5
"""Tolerance relative to the largest coefficient of the optimizer step."""
LOSS = "actor/loss"
VERSION = "train/weight_version"
SHOWN = 3
"""Maximum number of tokens of an optimizer step that are listed."""


def check_run(directory: Path) -> CheckReport:
    """Check the record in a run directory.

    Raises:
        RecordError: the run has no record with tokens, no recorded step made an update, or a file cannot be read.
    """
    files = StepFiles(directory / DIRECTORY)
    steps = files.steps()
    if not steps:
        raise RecordError("no-record", f"{directory} has no record.", "Train with rllm.record=tokens.")
    checker = _Checker(files, {line["step"]: line for line in read_metrics(directory) if LOSS in line})
    checker.report.first_step = files.first_step()
    for step in range(checker.report.first_step, steps[-1] + 1):
        checker.check(step)
    report = checker.report
    if not checker.with_tokens and not report.problems:
        raise RecordError(
            "record-without-updates",
            f"The record of {directory} has no updates.",
            "To record updates, train with rllm.record=tokens.",
        )
    if not report.steps and not report.problems:
        raise RecordError(
            "record-without-updates",
            f"No step in {directory} made an update, so there is no update to check.",
            "Run `rllm view` to see the outcomes of its trajectories.",
        )
    return report


class _Checker:
    """Checks the steps of a record in order."""

    def __init__(self, files: StepFiles, logged: Mapping[int, Mapping[str, float]]) -> None:
        self.report = CheckReport()
        self.with_tokens = False
        self._files = files
        self._logged = logged
        self._recorded = set(files.steps())
        self._losses = RoleLosses()
        self._generated = RecordedSteps(files)

    def check(self, step: int) -> None:
        """Check a step, and add its problems to the report."""
        if step not in self._recorded:
            self.report.problems.append(
                Mismatch("missing-step", f"step {step} is not recorded, and steps after it are")
            )
            return
        changed = list(changed_files(self._files, step))
        self.report.problems += changed
        try:
            self._compare(step)
        except RllmError as error:
            self.report.problems.append(Mismatch(error.code, f"step {step}: {error.message}"))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # A changed value can raise any of these. If a digest differs, the report already names the file.
            if not changed:
                problem = f"step {step}: its files do not agree with each other ({type(error).__name__}: {error})"
                self.report.problems.append(Mismatch("inconsistent-files", problem))

    def _compare(self, step: int) -> None:
        files, report = self._files, self.report
        outcomes = files.outcomes(step)
        # A trajectory that waits for a later step has an outcome in each step until then.
        self._generated.drop_except({each.rollout_step for each in outcomes})
        report.problems += check_ids(step, outcomes, self._generated)
        has_update = files.has_update(step)
        if not has_update and not files.has_tokens(step):
            return
        self.with_tokens = True
        trained = {each.outcome.trajectory for each in outcomes if each.outcome.outcome == "trained"}
        if not has_update:
            if trained:
                report.problems.append(
                    Mismatch(
                        "missing-update",
                        f"step {step}: its update is not recorded, and it trained on {len(trained)} trajectories",
                    )
                )
            return
        report.steps += 1
        rows, updates = files.trace_table(step).to_pylist(), files.update_table(step).to_pylist()
        report.problems += _missing(trained, step, rows)
        report.problems += check_traces(step, rows, outcomes, self._generated)
        logged = self._logged.get(step, {})
        report.problems += check_metrics(step, updates, logged)
        if not updates or not rows or rows[0]["epoch"] is None:
            report.untraced.append(step)
            return
        objective = files.objective(step)
        if VERSION in logged:
            # The metric is the version after the update.
            compare_logprobs(rows, int(logged[VERSION]) - 1, self._generated, report)
        report.problems += _check_step(rows, updates, objective, step, logged.get(LOSS), report, self._losses)


def _check_step(
    rows: Sequence[Row],
    updates: Sequence[Row],
    objective: Mapping[str, Any],
    step: int,
    logged: float | None,
    report: CheckReport,
    losses: RoleLosses,
) -> Iterator[Mismatch]:
    plan = plan_of(objective, step)
    for update in updates:
        number = update["optimizer_step"]
        where = f"step {step}, optimizer step {number}"
        these = OptimizerRows([row for row in rows if row["optimizer_step"] == number])
        if not these.rows:
            yield Mismatch("missing-tokens", f"{where}: no token is recorded")
            continue
        report.tokens += sum(these.lengths)
        yield from _check_weights(these, objective, where)
        if update["policy_loss"] is None:
            report.unexplained += 1
            continue
        found = recompute_loss(these, plan, update["loss_seed"] or 0, losses)
        if found is not None:
            report.optimizer_steps += 1
            yield from _check_loss(update, found, where, report)
            yield from _check_coefficients(these, found, where, report)
    known = [update["loss"] for update in updates if update["loss"] is not None]
    if logged is None:
        report.unlogged.append(step)
    elif len(known) == len(updates):
        yield from _differs(f"step {step}: {LOSS} in {METRICS}", logged, float(np.mean(known)), 1.0)


def _missing(trained: Set[str], step: int, rows: Sequence[Row]) -> Iterator[Mismatch]:
    """Yield trajectories that are trained in their outcome but have no row in the traces, or the reverse."""
    traced = {row["trajectory"] for row in rows}
    for uid in sorted(trained ^ traced):
        yield Mismatch(
            "trace-mismatch",
            f"step {step}: {uid} is {'trained on, and has no trace' if uid in trained else 'traced, and not trained'}",
        )


def _check_weights(step: OptimizerRows, objective: Mapping[str, Any], where: str) -> Iterator[Mismatch]:
    recorded = step.column("weight")
    # A record does not contain the groups of rows.
    if recorded is None or objective["aggregation"] == "prompt-mean":
        return
    expected = expected_weights(step, objective)
    yield from _unequal(step, "weight", recorded, expected, LOSS_TOLERANCE * float(np.abs(expected).max()), where)


def _check_loss(update: Mapping[str, Any], found: Coefficients, where: str, report: CheckReport) -> Iterator[Mismatch]:
    parts = {"policy_loss": found.policy_loss, "kl_loss": found.kl_loss, "entropy_loss": found.entropy_loss}
    size = max(1.0, found.size)
    for name, value in ({"loss": sum(parts.values())} | parts).items():
        if update[name] is not None:
            report.largest_loss_error = max(report.largest_loss_error, abs(value - update[name]) / size)
            yield from _differs(f"{where}: {name}", update[name], value, size)


def _differs(what: str, recorded: float, value: float, size: float) -> Iterator[Mismatch]:
    if not abs(value - recorded) <= LOSS_TOLERANCE * size:
        yield Mismatch("loss-mismatch", f"{what} is {recorded:.9g}, and {value:.9g} follows from the record")


def _check_coefficients(
    step: OptimizerRows, found: Coefficients, where: str, report: CheckReport
) -> Iterator[Mismatch]:
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
) -> Iterator[Mismatch]:
    wrong = np.flatnonzero(~(np.abs(recorded - expected) <= tolerance))
    owners = np.repeat(np.arange(len(step.rows)), step.lengths)
    positions = np.concatenate([row["positions"] for row in step.rows])
    for token in wrong[:SHOWN]:
        row = step.rows[owners[token]]
        place = f"{row['trajectory']}, segment {row['segment']}, position {positions[token]}"
        yield Mismatch(
            "token-mismatch",
            f"{where}, {place}: {name} is {recorded[token]:.9g}, and {expected[token]:.9g} follows from the record",
        )
    if len(wrong) > SHOWN:
        yield Mismatch("token-mismatch", f"{where}: {name} of {len(wrong) - SHOWN} more tokens")
