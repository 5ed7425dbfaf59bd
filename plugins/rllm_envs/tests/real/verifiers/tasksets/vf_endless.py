"""An endless taskset that draws from Python's random numbers."""

from __future__ import annotations

import random
from collections.abc import Iterable

import verifiers.v1 as vf
from vf_adds import Data, Sum


class Endless(vf.Taskset[Sum, vf.TasksetConfig]):
    INFINITE = True

    def load(self) -> Iterable[Sum]:
        while True:
            number = random.randrange(10**6)
            yield Sum(Data(prompt=f"What is {number} + {number}?", answer=2 * number), self.config.task)


__all__ = ["Endless"]
