"""An event loop whose clock moves only when no task can run, so a time limit never stops a running task.

On a loaded machine a limit of 50 ms is not reached early, and waiting for an hour takes no time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
LOOK = 0.005
"""Seconds between two checks of threads."""


class _Selector(selectors.DefaultSelector):
    """Moves the clock by the timeout instead of waiting."""

    def __init__(self, may_move: Callable[[], bool]) -> None:
        super().__init__()
        self.now, self._may_move = 0.0, may_move

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        while not self._may_move():
            if found := super().select(LOOK):
                return found
        if not (found := super().select(0)):
            self.now += timeout
        return found


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, selector: _Selector) -> None:
        super().__init__(selector)
        self._virtual = selector

    def time(self) -> float:
        return self._virtual.now


def run(coroutine: Coroutine[Any, Any, T], until: Callable[[], bool] = lambda: True) -> T:
    """Return the coroutine's result, as `asyncio.run` does.

    The clock does not move before `until` is true, which means that threads have finished.
    """
    with asyncio.Runner(loop_factory=lambda: _Loop(_Selector(until))) as runner:
        return runner.run(coroutine)
