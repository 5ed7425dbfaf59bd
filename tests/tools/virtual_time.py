"""An event loop whose clock moves only when nothing is left to do: a time limit never cuts off what is under way.

A loaded machine cannot make a limit of 50 ms strike early, and waiting for an hour takes no time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
LOOK = 0.005
"""Seconds between two looks at what threads do."""


class _Selector(selectors.DefaultSelector):
    """Moves the clock by what it is told to wait, in place of waiting."""

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
    """What the coroutine returns, as from `asyncio.run`.

    The clock stands still before `until` is true: it says when threads have done what they do.
    """
    with asyncio.Runner(loop_factory=lambda: _Loop(_Selector(until))) as runner:
        return runner.run(coroutine)
