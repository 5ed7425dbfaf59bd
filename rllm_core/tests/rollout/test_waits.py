"""Waits of rollouts in progress."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from dataclasses import dataclass, field

from rollout_context import context_of

from rllm_core.contracts import Outcome, RolloutRequest, SamplingParams
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.data.types import Episode, Task
from rllm_core.rollout.runner import PerRolloutEngine, RolloutRunner, RolloutSetup, RunnerSettings
from rllm_core.rollout.waits import PendingRollouts, Wait, open_rollout
from rllm_core.rollout.workflows import MultiTurnWorkflow

from .conftest import FunctionEnvironment, ScriptedEngine

Seen = list[tuple[str, int, str]]


@dataclass
class Looks:
    """Looks at the pending rollouts from inside each part of a rollout."""

    pending: PendingRollouts = field(default_factory=PendingRollouts)
    seen: Seen = field(default_factory=list)

    def look(self) -> None:
        self.seen += [(wait.uid, wait.turn, f"{wait.kind} {wait.name}".strip()) for wait in self.pending.read()]

    def answer(self, prompt: str, sampling: SamplingParams) -> str:
        self.look()
        return "ok$"

    def step(self, action: str) -> Outcome:
        self.look()
        return Outcome(done=len(self.seen) > 3, reward=1.0)

    async def score(self, rollout: Rollout) -> Score:
        with Wait("reward", "exact"):
            self.look()
        return Score(value=1.0)

    def run(self, workflow: Callable[[RolloutSetup], MultiTurnWorkflow]) -> list[Episode]:
        settings = RunnerSettings(n_parallel_tasks=1, retry_limit=1, raise_on_error=True, trajectory_timeout=None)
        order = RolloutRequest(
            tasks=[Task(id="t", data={})], rollouts=1, sampling=SamplingParams(max_tokens=9), label="train"
        )
        return asyncio.run(RolloutRunner(workflow, settings).run(order))

    def workflow(self, rollout: RolloutSetup) -> MultiTurnWorkflow:
        engine = PerRolloutEngine(ScriptedEngine(self.answer))
        environment = FunctionEnvironment(self.step)
        return MultiTurnWorkflow(
            context_of(engine, make_environment=lambda: environment, environment_blocks=True, score=self.score)
        )


def collect_and_run(looks: Looks) -> None:
    looks.pending.listen()
    looks.run(looks.workflow)


def test_rollout_waits_for_each_part_in_turn() -> None:
    looks = Looks()
    contextvars.copy_context().run(collect_and_run, looks)
    step = f"environment {FunctionEnvironment.step.__qualname__}"
    parts = [(0, "model"), (0, step), (1, "model"), (1, step), (1, "reward exact")]
    assert looks.seen == [("t:0", turn, part) for turn, part in parts]
    assert looks.pending.read() == []
    assert looks.pending.median_seconds("reward") is not None
    assert looks.pending.median_seconds("tool") is None


def test_rollouts_are_not_collected_without_a_reader() -> None:
    looks = Looks()
    looks.run(looks.workflow)
    assert looks.pending.read() == []


def test_wait_in_a_rollouts_task_ends_with_it() -> None:
    pending = PendingRollouts()

    async def stuck(name: str) -> None:
        with Wait("tool", name):
            await asyncio.sleep(600)

    async def run() -> list[str]:
        pending.listen()
        with open_rollout("t:0"):
            tasks = [asyncio.create_task(stuck(name)) for name in ("first", "second")]
            await asyncio.sleep(0)
            tasks[1].cancel()
            await asyncio.wait(tasks[1:])
            (left,) = pending.read()
            tasks[0].cancel()
            await asyncio.wait(tasks)
            (own,) = pending.read()
        return [left.name, own.kind]

    assert contextvars.copy_context().run(asyncio.run, run()) == ["first", "workflow"]
