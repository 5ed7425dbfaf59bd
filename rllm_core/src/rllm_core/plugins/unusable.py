"""The error and the record of a plugin that is installed but unusable."""

from __future__ import annotations

from dataclasses import dataclass


class UnusablePluginError(Exception):
    """A plugin is unusable. The message is the reason in one line. `remedy` is the fix, empty if it is unknown."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A plugin that is installed but unusable. None of its specs is registered."""

    name: str
    """Name of the plugin's entry point."""
    distribution: str
    version: str
    reason: str
    """The reason, in one line."""
    remedy: str
    """The fix, such as a pip command. Empty if it is unknown."""
    traceback: str
