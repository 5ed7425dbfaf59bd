"""A client's program, run as a rollout of the gateway, and its results."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway_world import Sampled, World

from rllm_gateway.calls import StoredSession
from rllm_gateway.running.episodes import SessionTrajectories, make_trajectories
from rllm_gateway.running.runners import CommandRunner, environment_of
from rllm_gateway.sampling.link_trainer import step_of
from rllm_gateway.sessions.link import SessionTrace

PROGRAMS = Path(__file__).with_name("programs")
MAX_TOKENS = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class Rollout:
    """The answer of a program, and its session in the policy, the store and the trainer."""

    answer: Any
    sampled: tuple[Sampled, ...]
    stored: StoredSession
    trace: SessionTrace
    trained: SessionTrajectories

    @property
    def rows(self) -> int:
        return int(self.trained.metrics["gateway/rows"])


@dataclass(frozen=True, eq=False)
class ProgramRunner:
    """Runs programs with a Python that has the clients and no package of this repository."""

    world: World
    python: Path
    directory: Path

    def run(self, program: str, task: Mapping[str, Any], **changes: Any) -> Rollout:
        """Run a program of `PROGRAMS` to its end, in a session with `changes` to its `SessionSpec`."""
        world = self.world
        session = world.open(max_tokens=MAX_TOKENS, **changes)
        # The link must not be resolved, because its target is a Python without the environment's packages.
        runner = CommandRunner([str(self.python.absolute()), str(PROGRAMS / f"{program}.py")], self.directory)
        outcome = asyncio.run(runner.run(task, environment_of(session, task)))
        trace = world.close(session)
        assert outcome.code == 0, "\n".join(outcome.last_lines)
        calls = tuple(world.policy.calls)
        by_id = {each.call: step_of(each.prompt_ids, each.completion) for each in calls}
        return Rollout(
            answer=outcome.result["answer"],
            sampled=calls,
            stored=world.store.session(session.id),
            trace=trace,
            trained=make_trajectories(trace, by_id, "task:0"),
        )
