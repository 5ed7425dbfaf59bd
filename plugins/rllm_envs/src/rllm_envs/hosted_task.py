"""Tasks whose content a different project has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rllm_core.data.types import Task


@dataclass(frozen=True, kw_only=True)
class HostedTask(Task):
    """A task with content that a different project has. Its data identifies it there."""

    original: Callable[[], Any] = field(compare=False, repr=False)
    """Returns the content as JSON data."""

    def content(self) -> dict[str, Any]:
        """Return the task's data and its content, which a resumed run compares with its start."""
        return {**self.data, "original": self.original()}
