"""One turn: a sum."""

from __future__ import annotations

from collections.abc import Iterable

import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: int


class Sum(vf.Task[Data]):
    @vf.reward
    async def exact(self, trace: vf.Trace) -> float:
        return float((trace.last_reply or "").strip() == str(self.data.answer))

    @vf.reward(weight=0.25)
    async def short(self, trace: vf.Trace) -> float:
        return 1 / len(trace.last_reply or "?")

    @vf.metric
    async def letters(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply or ""))


class Config(vf.TasksetConfig):
    first: int = 1
    tasks: int = 2
    unprepared: bool = False
    """True if the setup of each task raises an error."""
    fails_at: int = -1
    """Number of a task whose reward raises an error."""


class Unprepared(Sum):
    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        raise RuntimeError("there is no sandbox")


class Failing(Sum):
    @vf.reward
    async def broken(self, trace: vf.Trace) -> float:
        raise RuntimeError("the sandbox is gone")


class Adds(vf.Taskset[Sum, Config]):
    def load(self) -> Iterable[Sum]:
        for number in range(self.config.first, self.config.first + self.config.tasks):
            data = Data(prompt=f"What is {number} + {number}?", answer=2 * number)
            kind = Failing if number == self.config.fails_at else Sum
            yield (Unprepared if self.config.unprepared else kind)(data, self.config.task)


__all__ = ["Adds"]
