"""Tools through MCP: one server for all rollouts."""

from __future__ import annotations

from collections.abc import Iterable

import verifiers.v1 as vf


class Clock(vf.Toolset[vf.SharedToolsetConfig, vf.State]):
    @vf.tool
    async def hours(self, city: str) -> str:
        """Return the hour in a city."""
        return f"{city} {len(city)}"


class Data(vf.TaskData):
    answer: str


class Asks(vf.Task[Data]):
    @vf.reward
    async def exact(self, trace: vf.Trace) -> float:
        return float((trace.last_reply or "").strip() == self.data.answer)

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class Hours(vf.Taskset[Asks, vf.TasksetConfig]):
    def load(self) -> Iterable[Asks]:
        for city in ("Rome", "Paris"):
            yield Asks(Data(prompt=f"Which hour is it in {city}?", answer=f"{city} {len(city)}"), self.config.task)

    @classmethod
    def toolsets(cls, config: vf.TasksetConfig) -> list[vf.Toolset]:
        return [Clock(vf.SharedToolsetConfig())]


__all__ = ["Hours"]

if __name__ == "__main__":
    Clock.run()
