"""A plugin that is installed and cannot be used: the error, and what is kept of the plugin."""

from __future__ import annotations

from dataclasses import dataclass


class UnusablePluginError(Exception):
    """A plugin cannot be used. The message is the reason, in one line; `remedy` is what to do, where that is known."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A plugin that is installed and cannot be used; none of its records is registered."""

    name: str
    """Name of its entry point."""
    distribution: str
    version: str
    reason: str
    """One line."""
    remedy: str
    """What to do, where that is known: a command of pip."""
    traceback: str
