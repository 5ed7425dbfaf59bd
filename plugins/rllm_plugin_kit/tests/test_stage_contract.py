"""Stages that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.stage import StagePlugin
from rllm_core.contracts.stage_context import StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_plugin_kit import StageContract, stage_context


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


class LooksAtEpisodes(Stage):
    async def __call__(self, step: TrainStep) -> None:
        step.metrics["mine/episodes"] = float(len(step.episodes))


class LooksAtAdvantages(Stage):
    async def __call__(self, step: TrainStep) -> None:
        step.metrics["mine/largest"] = float(step.filled_batch.advantages.max(initial=0.0))  # type: ignore[union-attr]


class DropsGroups(Stage):
    async def __call__(self, step: TrainStep) -> None:
        step.trajectory_groups = step.trajectory_groups[1:]


class ShapesRewards(Stage):
    async def __call__(self, step: TrainStep) -> None:
        for group in step.trajectory_groups:
            for trajectory in group.trajectories:
                trajectory.reward = 0.5


class RenamesTrajectories(Stage):
    async def __call__(self, step: TrainStep) -> None:
        for group in step.trajectory_groups:
            for trajectory in group.trajectories:
                trajectory.name = "somebody"


class ClipsAdvantages(Stage):
    async def __call__(self, step: TrainStep) -> None:
        batch = step.filled_batch
        step.batch = batch.with_columns(advantages=np.zeros(len(batch.tokens), np.float32))


class CountsSteps(Stage):
    async def __call__(self, step: TrainStep) -> None:
        step.global_step += 1


class SkipsAhead(Stage):
    async def __call__(self, step: TrainStep) -> None:
        step.weight_version += 1


class EditsTasks(Stage):
    async def __call__(self, step: TrainStep) -> None:
        for task in step.tasks:
            task.data["hint"] = "none"  # type: ignore[index]


class MovesEpisodes(Stage):
    async def __call__(self, step: TrainStep) -> None:
        for episode in step.episodes:
            episode.data_source = "somewhere"


class RenamesRollouts(Stage):
    async def __call__(self, step: TrainStep) -> None:
        for group in step.trajectory_groups:
            for trajectory in group.trajectories:
                trajectory.uid = "x"


class Skips(Stage):
    async def __call__(self, step: TrainStep) -> None:
        step.skip("bored")


class TimesItself(Stage):
    async def __call__(self, step: TrainStep) -> None:
        step.timing_dict["mine"] = 1.0


class Divides(Stage):
    async def __call__(self, step: TrainStep) -> None:
        step.metrics["mine/share"] = 1 / len(step.trajectory_groups)


class NotANumber(Stage):
    async def __call__(self, step: TrainStep) -> None:
        step.metrics["mine/nan"] = float("nan")


class NotAsync(Stage):
    def __call__(self, step: TrainStep) -> None:  # type: ignore[override]
        pass


class Forgets(Stage):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class KeepsMoreThanItSays(Stage):
    def __init__(self, context: StageContext, params: NoParams) -> None:
        super().__init__(context, params)
        self.steps = 0

    async def __call__(self, step: TrainStep) -> None:
        await super().__call__(step)
        self.steps += 1
        step.metrics["mine/steps"] = float(self.steps)


class KeepsObjects(Stage):
    def state_dict(self) -> dict[str, Any]:
        return {"groups": {self.groups}}


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
def test_a_good_stage_has_no_complaints(complaints: Any) -> None:
    assert complaints(StageContract, record(Stage)) == {}
    assert complaints(StageContract, record(DropsGroups, writes="trajectory_groups")) == {}
    assert complaints(StageContract, record(ShapesRewards, writes="rewards")) == {}
    assert complaints(StageContract, record(RenamesTrajectories, writes="trajectory_names")) == {}
    assert complaints(StageContract, record(ClipsAdvantages, reads="batch", writes="batch.advantages")) == {}
    assert complaints(StageContract, record(LooksAtAdvantages, reads="batch batch.advantages")) == {}
    assert complaints(StageContract, record(SkipsAhead, writes="weights")) == {}
    assert complaints(StageContract, record(KeepsNothing, reads="episodes", is_rollout_stage=True)) == {}


CHANGES = "only_declared_fields_are_changed"
RESUMED = "a_resumed_run_continues_exactly"


@pytest.mark.parametrize(
    ("plugin", "test", "told"),
    [
        (record(LooksAtEpisodes), "only_declared_fields_are_read", "step.episodes"),
        (record(LooksAtAdvantages, reads="batch"), "declared_reads_are_sufficient", "AttributeError"),
        (record(DropsGroups), CHANGES, "'trajectory_groups'"),
        (record(ShapesRewards), CHANGES, "'episodes'"),
        (record(ShapesRewards, writes="trajectory_groups"), CHANGES, "changes rewards of"),
        (record(EditsTasks, reads="tasks"), CHANGES, "changes tasks of"),
        (record(MovesEpisodes, reads="episodes"), CHANGES, "changes generated of"),
        (record(RenamesRollouts), CHANGES, "changes tokens of"),
        (record(Skips), CHANGES, "skip_reason"),
        (record(TimesItself), CHANGES, "No stage may"),
        (record(RenamesTrajectories), CHANGES, "trajectory_names"),
        (record(ClipsAdvantages, reads="batch"), CHANGES, "batch.advantages"),
        (record(CountsSteps), CHANGES, "step.extras"),
        (record(SkipsAhead), CHANGES, "'weights'"),
        (record(Divides), "empty_step_works", "ZeroDivisionError"),
        (record(NotANumber), "metrics_are_finite", "'mine/nan'"),
        (record(NotAsync), "declared_reads_are_sufficient", "`async def __call__(self, step)`"),
        (record(Forgets), RESUMED, "continues differently"),
        (record(KeepsMoreThanItSays), RESUMED, "load_state_dict"),
        (record(KeepsObjects), RESUMED, "has a state"),
        (record(Stage, is_rollout_stage=True), "rollout_stage_has_no_state", "is_rollout_stage"),
        (record(TakesOptionsAlone), "declared_reads_are_sufficient", "`load`"),
        (record(Stage, reads="trajectory_grups"), "declared_reads_are_written_by_some_stage", "'trajectory_groups'"),
    ],
)
def test_contract_reports_the_mistake(complaint: Any, plugin: StagePlugin[Any], test: str, told: str) -> None:
    assert told in complaint(StageContract, plugin, test)


def test_a_stage_may_need_a_different_context(complaint: Any) -> None:
    class LooksAtTheSeed(Stage):
        def __init__(self, context: StageContext, params: NoParams) -> None:
            assert context.seed == 7

    test = "declared_reads_are_sufficient"
    assert "AssertionError" in complaint(StageContract, record(LooksAtTheSeed), test)
    seven = {"context": lambda self: stage_context(seed=7)}
    assert "AssertionError" not in complaint(StageContract, record(LooksAtTheSeed), test, **seven)
