"""Isolate games from each other, and from everything else in the process.

Every game seeds and uses Python's global random numbers. Games run in threads of one process, so each game needs its
own random numbers: the name `random` in TextArena's modules refers to the random numbers of the current game.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_NUMBERS: ContextVar[random.Random] = ContextVar("random numbers of the game that is being played")


class _GameRandom:
    """Replacement for the module `random`."""

    def __getattr__(self, name: str) -> Any:
        played = _NUMBERS.get(None)
        return getattr(played if hasattr(played, name) else random, name)


_RANDOM = _GameRandom()


@contextmanager
def use_random_numbers(numbers: random.Random) -> Iterator[None]:
    """Let TextArena draw from `numbers` in this thread."""
    token = _NUMBERS.set(numbers)
    try:
        yield
    finally:
        _NUMBERS.reset(token)


def isolate() -> None:
    """Give the modules of TextArena that are loaded random numbers of the game that is being played, and no screen."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "textarena":
            if vars(module).get("random") is random:
                vars(module)["random"] = _RANDOM
            vars(module)["print"] = _silent


def _silent(*said: object, **options: object) -> None:
    """Some games print what they do."""
