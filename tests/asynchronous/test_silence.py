"""What never answers, in a round that is played ahead: it costs its time limit, and the run goes on or says why not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
import scripted_world
from scripted_world import ahead

from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.contracts.plugin import NoParams
from rllm_core.data.types import TerminationReason
from rllm_core.plugins.registry import Registry

LIMIT = 300.0
LIMITED = {"rllm.agent.trajectory_timeout": LIMIT}
MODES = pytest.mark.parametrize("partial", [False, True], ids=["fixed", "latest"])


class Silent(scripted_world.Letters):
    """One task never begins."""

    async def reset(self, task: Mapping[str, Any]) -> str:  # type: ignore[override]
        if task["number"] == 5:
            await asyncio.Event().wait()
        return super().reset(task)


@pytest.fixture
def silent_environment(world: Registry) -> None:
    world.add(
        EnvironmentPlugin(
            name="silent",
            summary="For tests.",
            params=NoParams,
            load=lambda: Silent,
            defaults={"rllm.workflow.name": "multi_turn_workflow"},
        )
    )


def _timeouts(made: Any) -> list[int]:
    """Rollouts of each step that met their time limit."""
    reasons = [[episode.termination_reason for episode in step.generated] for step in made.steps]
    return [each.count(TerminationReason.TIMEOUT) for each in reasons]


@MODES
def test_a_silent_environment_costs_its_rollouts_and_no_more(run: Any, silent_environment: None, partial: bool) -> None:
    made = run({**ahead(2, partial), **LIMITED, "rllm.env.name": "silent"})
    # 12 tasks, 4 a step: each is played twice in 6 steps, 3 times each.
    assert sum(_timeouts(made)) == 6
    assert len(made.backend.updates) == 6
    assert made.seconds < 3 * LIMIT


@MODES
def test_an_engine_that_falls_silent_costs_the_rollouts_of_a_round(
    run: Any, monkeypatch: pytest.MonkeyPatch, partial: bool
) -> None:
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
def test_a_run_ends_with_the_last_round_of_its_last_epoch(run: Any, partial: bool) -> None:
    # 12 tasks, 5 at a time: rounds ahead reach over the end of an epoch, and none is played that no step trains on.
    made = run(
        {
            **ahead(3, partial),
            "data.train_batch_size": 5,
            "rllm.trainer.total_batches": -1,
            "rllm.trainer.total_epochs": 3,
        }
    )
    assert len(made.steps) == made.loop.total_steps == len(made.backend.updates)
    assert json.loads((made.directory / "length.json").read_text()) == {"total_steps": len(made.steps)}
    trained = sum(map(len, made.backend.updates))
    validated = len(made.backend.engine.validated)
    assert made.backend.engine.sampled == trained + validated
