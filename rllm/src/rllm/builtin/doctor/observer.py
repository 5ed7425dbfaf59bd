"""The observer `doctor`: it applies the rules to the run's files during the run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from rllm.builtin.doctor.catalog import RULES
from rllm.builtin.doctor.reading import read_directory
from rllm.builtin.doctor.rule import Fault, diagnose
from rllm_core.contracts.backend import Backend
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.params import Params
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.contracts.train_step import TrainStep
from rllm_core.errors import RllmError
from rllm_core.notices import warn_once


class DoctorParams(Params):
    """Options of the observer `doctor`."""

    on_finding: Literal["warn", "stop"] = "warn"
    """Warn and continue, or stop the run with an error."""
    every: int = Field(20, ge=1)
    """Number of steps between two checks."""
    ignore: tuple[str, ...] = ()
    """Names of rules to ignore. `rllm doctor` prints the names."""


class Doctor(Observer):
    """Applies the rules to the finished steps, and reports each finding once."""

    def __init__(self, params: DoctorParams) -> None:
        self._params = params
        self._directory: Path | None = None
        self._rules = [rule for rule in RULES if rule.name not in params.ignore]
        self._reported: set[str] = set()

    def wrap_backend(self, backend: Backend, run: TrackedRun) -> Backend:
        self._directory = run.directory
        return backend

    def on_batch_start(self, step: TrainStep) -> None:
        # The files of the step before this one are complete now.
        if self._directory is not None and step.global_step and step.global_step % self._params.every == 0:
            self._check(self._directory)

    def _check(self, directory: Path) -> None:
        run = read_directory(directory, None)
        findings = [] if run is None else diagnose(run, self._rules).findings
        for finding in findings:
            if finding.rule.name not in self._reported:
                self._reported.add(finding.rule.name)
                self._report(finding, directory)

    def _report(self, finding: Fault, directory: Path) -> None:
        rule, text = finding.rule, finding.evidence.text
        problem = f"doctor: {rule.name}: {text}"
        if self._params.on_finding == "stop":
            hint = f"Change {rule.remedy.rllm}. `rllm doctor {directory}` shows the evidence."
            raise RllmError("run-has-fault", f"{problem}.", hint)
        warn_once(f"{problem}. Change {rule.remedy.rllm}")
