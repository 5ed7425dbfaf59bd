"""A component that never answers costs its time limit in a batch ahead. The run continues or reports the reason."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import scripted_world
from scripted_world import ahead

from rllm_core.data.types import TerminationReason

LIMIT = 300.0
LIMITED = {"rllm.agent.trajectory_timeout": LIMIT}
MODES = pytest.mark.parametrize("partial", [False, True], ids=["fixed", "latest"])


def _timeouts(made: Any) -> list[int]:
    """Return the number of rollouts of each step with a timeout."""
    reasons = [[episode.termination_reason for episode in step.generated] for step in made.steps]
    return [each.count(TerminationReason.TIMEOUT) for each in reasons]


@MODES
def test_silent_environment_costs_only_its_rollouts(run: Any, monkeypatch: pytest.MonkeyPatch, partial: bool) -> None:
    reset = scripted_world.Letters.reset

    async def sometimes(environment: Any, task: Any) -> str:
        if task["number"] == 5:
            await asyncio.Event().wait()
        return reset(environment, task)

    monkeypatch.setattr(scripted_world.Letters, "reset", sometimes)
    made = run({**ahead(2, partial), **LIMITED})
    # 12 tasks, 4 per step. In 6 steps each task occurs twice, with 3 rollouts each.
    assert sum(_timeouts(made)) == 6
    assert len(made.backend.updates) == 6
    assert made.seconds < 3 * LIMIT


@MODES
def test_silent_engine_costs_the_rollouts_of_a_batch(run: Any, monkeypatch: pytest.MonkeyPatch, partial: bool) -> None:
    generate = scripted_world.ScriptedEngine.generate

    async def sometimes(engine: Any, prompt_ids: Any, sampling: Any, *, session: str) -> Any:
        if engine._calls == 30:
            await asyncio.Event().wait()
        return await generate(engine, prompt_ids, sampling, session=session)

    monkeypatch.setattr(scripted_world.ScriptedEngine, "generate", sometimes)
    made = run({**ahead(2, partial), **LIMITED})
    # 6 steps of 12 rollouts, of one call each.
    assert sum(_timeouts(made)) == 72 - 30
    assert len(made.steps) == 6
    assert made.seconds < 6 * LIMIT + 100


@MODES
def test_run_ends_with_last_batch_of_last_epoch(run: Any, partial: bool) -> None:
    # 12 tasks, 5 at a time. Batches ahead cross the end of an epoch, and every generated batch is trained on.
    length = {"data.train_batch_size": 5, "rllm.trainer.total_batches": -1, "rllm.trainer.total_epochs": 3}
    made = run({**ahead(3, partial), **length})
    assert len(made.steps) == made.loop.total_steps == len(made.backend.updates)
    assert json.loads((made.directory / "length.json").read_text()) == {"total_steps": len(made.steps)}
    trained = sum(map(len, made.backend.updates))
    validated = len(made.backend.engine.validated)
    assert made.backend.engine.sampled == trained + validated
