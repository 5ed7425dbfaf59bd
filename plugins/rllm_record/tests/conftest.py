"""Recorded episodes for all tests of this package."""

from recorded_episodes import episodes, keep, run

__all__ = ["episodes", "keep", "run"]
