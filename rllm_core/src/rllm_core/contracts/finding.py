"""What a checkup says: `rllm plugins doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing worth knowing. An ``error`` means that something installed cannot be used."""

    code: str
    """The short name of the finding, as of an `RllmError`."""
    severity: Severity
    subject: str
    """What it is about: a plugin, a name or a setting."""
    problem: str
    remedy: str
    traceback: str = ""
