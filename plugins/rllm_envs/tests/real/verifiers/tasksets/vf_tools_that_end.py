"""A tool server whose module does not run it."""

from __future__ import annotations

import verifiers.v1 as vf
from vf_tools import Clock, Hours


class Stopped(Clock):
    """The process of this module ends at once."""


class Ends(Hours):
    @classmethod
    def toolsets(cls, config: vf.TasksetConfig) -> list[vf.Toolset]:
        return [Stopped(vf.SharedToolsetConfig())]


__all__ = ["Ends"]
