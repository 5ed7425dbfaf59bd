"""Two seats: one writes a sum, and the other solves it."""

from __future__ import annotations

from collections.abc import Iterable

import verifiers.v1 as vf


class Config(vf.EnvConfig):
    writer: vf.AgentConfig = vf.AgentConfig()
    solver: vf.AgentConfig = vf.AgentConfig()


class Duel(vf.Env[Config]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        written = await agents.writer.run(task)
        data = vf.TaskData(prompt=f"What is {written.last_reply}?")
        await agents.solver.run(vf.Task(data))

    async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
        writer, solver = episode.traces
        solved = solver.last_reply.strip() == str(sum(map(int, writer.last_reply.split(" + "))))
        solver.record_reward("solved", float(solved))
        writer.record_reward("hard", 0.5 - float(solved))


class Topics(vf.Taskset[vf.Task, vf.TasksetConfig]):
    def load(self) -> Iterable[vf.Task]:
        for number in (2, 4):
            yield vf.Task(vf.TaskData(prompt=f"Write a sum with the number {number}."), self.config.task)


__all__ = ["Duel", "Topics"]
