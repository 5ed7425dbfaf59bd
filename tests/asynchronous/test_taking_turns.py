"""A synchronous run calls its stages in order: weights, metrics and episodes are the same, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import virtual_time
from scripted_world import ScriptedBackend

from rllm.planning.plan import RunPlan
from rllm.training.setup import load_tasks, open_runner
from rllm.training.task_draws import TaskDraws, TaskSchedule
from rllm_core.contracts.backend import RunContext
from rllm_core.contracts.stage import Stage, StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data import codec

STEPS = 4


def rejecting(mode: str, **options: Any) -> dict[str, Any]:
    return {"rllm.rejection_sample.enable": True, "rllm.rejection_sample.mode": mode, **options}


DYNAMIC = rejecting("dynamic")
EPISODE = rejecting("episode", **{"rllm.rejection_sample.min_partial_solve_tasks": 3})
SAMPLE = [
    ("grpo", {}, "task_role", "multi_turn_workflow", True),
    ("remax", rejecting("group"), "task", "duet", False),
    ("reinforce_plus_plus_baseline", EPISODE, "role", "multi_turn_workflow", True),
    ("maxrl", DYNAMIC, "task_role", "duet", True),
]
"""Estimator, rejection, grouping, workflow, and whether asynchronous training is enabled with a bound of 0."""


class InARow:
    """Call all stages on one step in order. A step that needs more repeats them from the first."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self.backend = ScriptedBackend()
        self.steps: list[TrainStep] = []
        self.drawn = 0

    async def fit(self) -> None:
        plan, config = self._plan, self._plan.config
        tasks = load_tasks(plan, "train")
        schedule, draws = TaskSchedule(tasks, plan.tasks_per_step), TaskDraws(plan, tasks)
        context = RunContext(
            config=config, backend_config=plan.composed.backend_config, seed=config.rllm.trainer.seed, total_steps=STEPS
        )
        engine = await self.backend.start(context)
        async with open_runner(plan, engine) as runner:
            stages = StageContext(
                config=config,
                seed=config.rllm.trainer.seed,
                backend=self.backend,
                runner=runner,
                grouping=plan.grouping,
                rejection=plan.rejection.registered.load()(plan.rejection.params),
                rejection_name=plan.rejection.registered.qualified_name,
                needs=plan.needs,
                estimator_of=plan.estimators.get,
                loss_of=plan.losses.get,
                log=lambda global_step, metrics: None,
                max_context=engine.max_context,
            )
            made = [(chosen.plugin.always, chosen.registered.load()(stages, chosen.params)) for chosen in plan.stages]
            for _ in range(STEPS):
                await self._step(made, schedule, draws)

    async def _step(self, stages: Sequence[tuple[bool, Stage]], schedule: TaskSchedule, draws: TaskDraws) -> None:
        step = TrainStep(
            global_step=len(self.steps),
            epoch=schedule.epoch_of(self.drawn),
            total_steps=STEPS,
            tasks=draws.draw(self.drawn)[0],
            task_batch=self.drawn,
            weight_version=len(self.backend.updates),
        )
        self.drawn += 1
        position = 0
        while position < len(stages):
            always, stage = stages[position]
            position += 1
            if not step.skip_reason or always:
                await stage(step)
            if step.asks_for_more:
                step.go_on()
                step.asks_for_more = False
                step.tasks, step.task_batch = draws.draw(self.drawn)[0], self.drawn
                step.later_batches.append(len(step.generated))
                step.episodes, step.trajectory_groups = [], []
                self.drawn += 1
                position = 0
        self.steps.append(step)


def _content(steps: Sequence[TrainStep]) -> list[Any]:
    """Return the results of a run without times."""
    return [
        (
            {name: value for name, value in step.metrics.items() if not name.startswith("time/")},
            [[codec.episode_to_json(episode) for episode in batch] for batch in step.generated_by_batch],
            [(decision.outcome, decision.rule, dict(decision.numbers)) for decision in step.decisions],
            (step.skip_reason, step.rollout_batches, step.task_batch, step.epoch, step.weight_version),
        )
        for step in steps
    ]


@pytest.mark.parametrize(
    ("estimator", "rejection", "grouping", "workflow", "enabled"),
    [
        pytest.param(*each, marks=pytest.mark.smoke if number == 3 else pytest.mark.long)
        for number, each in enumerate(SAMPLE)
    ],
    ids=[each[0] for each in SAMPLE],
)
def test_synchronous_run_is_its_stages_in_order(
    run: Any, planned: Any, estimator: str, rejection: dict[str, Any], grouping: str, workflow: str, enabled: bool
) -> None:
    settings = {
        "rllm.algorithm.adv_estimator": estimator,
        "rllm.transform.grouping": grouping,
        "rllm.workflow.name": workflow,
        "rllm.trainer.total_batches": STEPS,
        **rejection,
        **({"rllm.async_training.enable": True} if enabled else {}),
    }
    made = run(settings)
    reference = InARow(planned(settings))
    virtual_time.run(reference.fit())
    assert made.backend.weights == reference.backend.weights
    assert _content(made.steps) == _content(reference.steps)
    assert len(reference.steps) == STEPS


def test_sample_needs_more_batches_and_waits(planned: Any) -> None:
    """Otherwise the comparison above proves little."""
    dynamic, waiting, seeded = (
        InARow(planned({**settings, "rllm.trainer.total_batches": STEPS}))
        for settings in (DYNAMIC, EPISODE, {**DYNAMIC, "rllm.trainer.seed": 1})
    )
    for reference in (dynamic, waiting, seeded):
        virtual_time.run(reference.fit())
    assert max(step.rollout_batches for step in dynamic.steps) > 1
    assert any(step.skip_reason == "waiting_for_more_groups" for step in waiting.steps)
    assert dynamic.backend.weights != seeded.backend.weights
