"""Stages that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rllm_core.contracts import NoParams, StageContext, StagePlugin, TrainStep
from rllm_plugin_kit import StageContract, stage_context

from .conftest import later, vary


class Stage:
    """Counts the groups of all steps."""

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self.groups = 0

    async def __call__(self, step: TrainStep) -> None:
        self.groups += len(step.trajectory_groups)
        step.metrics["mine/groups"] = float(self.groups)

    def state_dict(self) -> dict[str, Any]:
        return {"groups": self.groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.groups = state["groups"]


def stage(body: Callable[[TrainStep], object]) -> type[Stage]:
    """Return a stage that does this with each step."""
    return vary(Stage, __call__=later(lambda self, step: body(step)))


def setting(**values: Callable[[TrainStep], Any]) -> type[Stage]:
    """Return a stage that sets these fields of a step."""
    return stage(lambda step: [setattr(step, name, value(step)) for name, value in values.items()])


def for_trajectories(field: str, value: Any) -> type[Stage]:
    """Return a stage that sets this field of the trajectories in groups."""
    return stage(
        lambda step: [setattr(each, field, value) for group in step.trajectory_groups for each in group.trajectories]
    )


def zero_advantages(step: TrainStep) -> Any:
    batch = step.filled_batch
    return batch.with_columns(advantages=np.zeros(len(batch.tokens), np.float32))


def metric(name: str, value: Callable[[TrainStep], float]) -> type[Stage]:
    """Return a stage that adds a metric."""
    return stage(lambda step: step.metrics.update({f"mine/{name}": value(step)}))


LooksAtEpisodes = metric("episodes", lambda step: float(len(step.episodes)))


LooksAtAdvantages = metric("largest", lambda step: float(step.filled_batch.advantages.max(initial=0.0)))  # type: ignore[union-attr]
DropsGroups = setting(trajectory_groups=lambda step: step.trajectory_groups[1:])
ClipsAdvantages = setting(batch=zero_advantages)
SkipsAhead = setting(weight_version=lambda step: step.weight_version + 1)
ShapesRewards, RenamesTrajectories = for_trajectories("reward", 0.5), for_trajectories("name", "mine")


def edit_tasks(step: TrainStep) -> None:
    for task in step.tasks:
        task.data["hint"] = "none"  # type: ignore[index]


def move_episodes(step: TrainStep) -> None:
    for episode in step.episodes:
        episode.data_source = "somewhere"


class KeepsMoreThanItSays(Stage):
    def __init__(self, context: StageContext, params: NoParams) -> None:
        super().__init__(context, params)
        self.steps = 0

    async def __call__(self, step: TrainStep) -> None:
        await super().__call__(step)
        self.steps += 1
        step.metrics["mine/steps"] = float(self.steps)


class KeepsNothing:
    def __init__(self, context: StageContext, params: NoParams) -> None:
        pass

    async def __call__(self, step: TrainStep) -> None:
        step.metrics["mine/episodes"] = float(len(step.episodes))


class TakesOptionsAlone(Stage):
    def __init__(self, params: NoParams) -> None:
        pass


def record(
    stage: type[Any], reads: str = "trajectory_groups", writes: str = "", **fields: Any
) -> StagePlugin[NoParams]:
    return StagePlugin(
        name="mine",
        summary="Mine.",
        params=NoParams,
        load=lambda: stage,
        reads=frozenset(reads.split()),
        writes=frozenset(writes.split()),
        **fields,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "plugin",
    [
        record(Stage),
        record(DropsGroups, writes="trajectory_groups"),
        record(ShapesRewards, writes="rewards"),
        record(RenamesTrajectories, writes="trajectory_names"),
        record(ClipsAdvantages, reads="batch", writes="batch.advantages"),
        record(LooksAtAdvantages, reads="batch batch.advantages"),
        record(SkipsAhead, writes="weights"),
        record(KeepsNothing, reads="episodes", is_rollout_stage=True),
    ],
)
def test_a_good_stage_has_no_complaints(complaints: Any, plugin: StagePlugin[Any]) -> None:
    assert complaints(StageContract, plugin) == {}


CHANGES = "only_declared_fields_are_changed"
SUFFICIENT = "declared_reads_are_sufficient"
RESUMED = "a_resumed_run_continues_exactly"


@pytest.mark.parametrize(
    ("plugin", "test", "told"),
    [
        (record(LooksAtEpisodes), "only_declared_fields_are_read", "step.episodes"),
        (record(LooksAtAdvantages, reads="batch"), SUFFICIENT, "AttributeError"),
        (record(DropsGroups), CHANGES, "'trajectory_groups'"),
        (record(ShapesRewards), CHANGES, "'episodes'"),
        (record(ShapesRewards, writes="trajectory_groups"), CHANGES, "changes rewards of"),
        (record(stage(edit_tasks), reads="tasks"), CHANGES, "changes tasks of"),
        (record(stage(move_episodes), reads="episodes"), CHANGES, "changes generated of"),
        (record(for_trajectories("uid", "x")), CHANGES, "changes tokens of"),
        (record(stage(lambda step: step.skip("bored"))), CHANGES, "skip_reason"),
        (record(stage(lambda step: step.timing_dict.update(mine=1.0))), CHANGES, "No stage may"),
        (record(RenamesTrajectories), CHANGES, "trajectory_names"),
        (record(ClipsAdvantages, reads="batch"), CHANGES, "batch.advantages"),
        (record(setting(global_step=lambda step: step.global_step + 1)), CHANGES, "step.extras"),
        (record(SkipsAhead), CHANGES, "'weights'"),
        (
            record(metric("share", lambda step: 1 / len(step.trajectory_groups))),
            "empty_step_works",
            "ZeroDivisionError",
        ),
        (record(metric("nan", lambda step: float("nan"))), "metrics_are_finite", "'mine/nan'"),
        (record(vary(Stage, __call__=lambda self, step: None)), SUFFICIENT, "`async def __call__(self, step)`"),
        (record(vary(Stage, load_state_dict=lambda self, state: None)), RESUMED, "continues differently"),
        (record(KeepsMoreThanItSays), RESUMED, "load_state_dict"),
        (record(vary(Stage, state_dict=lambda self: {"groups": {self.groups}})), RESUMED, "has a state"),
        (record(Stage, is_rollout_stage=True), "rollout_stage_has_no_state", "is_rollout_stage"),
        (record(TakesOptionsAlone), SUFFICIENT, "`load`"),
        (record(Stage, reads="trajectory_grups"), "declared_reads_are_written_by_some_stage", "'trajectory_groups'"),
    ],
)
def test_contract_reports_the_mistake(complaint: Any, plugin: StagePlugin[Any], test: str, told: str) -> None:
    assert told in complaint(StageContract, plugin, test)


def test_a_stage_may_need_a_different_context(complaint: Any) -> None:
    class LooksAtTheSeed(Stage):
        def __init__(self, context: StageContext, params: NoParams) -> None:
            assert context.seed == 7

    assert "AssertionError" in complaint(StageContract, record(LooksAtTheSeed), SUFFICIENT)
    seven = {"context": lambda self: stage_context(seed=7)}
    assert "AssertionError" not in complaint(StageContract, record(LooksAtTheSeed), SUFFICIENT, **seven)
