"""The error of a plugin that is installed and cannot be used."""

from __future__ import annotations


class UnusablePluginError(Exception):
    """A plugin cannot be used. The message is the reason, in one line; `remedy` is what to do, where that is known."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy
