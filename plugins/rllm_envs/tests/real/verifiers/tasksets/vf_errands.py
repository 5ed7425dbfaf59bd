"""A scenario for a simulated user (`env: user-sim`)."""

from __future__ import annotations

from collections.abc import Iterable

import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str


class Errand(vf.Task[Data]):
    @vf.reward
    async def booked(self, trace: vf.Trace) -> float:
        return float(self.data.answer in (trace.last_reply or ""))

    @vf.reward(weight=0.1)
    async def responses(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class Errands(vf.Taskset[Errand, vf.TasksetConfig]):
    def load(self) -> Iterable[Errand]:
        for city in ("Rome", "Oslo"):
            yield Errand(Data(prompt=f"You want a ticket to {city}.", answer="Rome"), self.config.task)


__all__ = ["Errands"]
