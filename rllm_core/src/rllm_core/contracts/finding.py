"""The findings of `rllm plugins doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rllm_core.errors import format_problem

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One result of a check. ``error`` means that an installed plugin or package cannot be used."""

    code: str
    """The short name of the finding, in the same form as the code of an `RllmError`."""
    severity: Severity
    subject: str
    """The subject of the finding: a plugin, a name or a setting."""
    problem: str
    remedy: str
    traceback: str = ""

    def printed(self, *, debug: bool = False) -> str:
        """Return the lines that ``rllm plugins doctor`` prints, with the traceback if `debug`."""
        details = self.traceback if debug else ""
        return format_problem(f"{self.subject}: {self.problem}", self.remedy, details, f"{self.severity}[{self.code}]")
