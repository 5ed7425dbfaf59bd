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


def test_a_good_one_has_nothing_to_mend(complaints: Any) -> None:
    assert complaints(StageContract, record(Stage)) == {}
    assert complaints(StageContract, record(DropsGroups, writes="trajectory_groups")) == {}
    assert complaints(StageContract, record(ShapesRewards, writes="rewards")) == {}
    assert complaints(StageContract, record(RenamesTrajectories, writes="trajectory_names")) == {}
    assert complaints(StageContract, record(ClipsAdvantages, reads="batch", writes="batch.advantages")) == {}
    assert complaints(StageContract, record(LooksAtAdvantages, reads="batch batch.advantages")) == {}
    assert complaints(StageContract, record(SkipsAhead, writes="weights")) == {}
    assert complaints(StageContract, record(KeepsNothing, reads="episodes", is_rollout_stage=True)) == {}


CHANGES = "it_changes_only_what_it_declares"
RESUMED = "a_resumed_run_goes_on_as_if_it_had_not_been_stopped"


@pytest.mark.parametrize(
    ("plugin", "test", "told"),
    [
        (
            record(LooksAtEpisodes),
            "it_reads_only_what_it_declares",
            "stage 'mine' looks at step.episodes, which is not among what it reads. Add 'episodes' to `reads` in its "
            "record, so that the order of stages can be checked.",
        ),
        (
            record(LooksAtAdvantages, reads="batch"),
            "it_needs_only_what_it_declares_to_read",
            "stage 'mine' failed on a step with nothing but what it reads: AttributeError",
        ),
        (
            record(DropsGroups),
            CHANGES,
            "stage 'mine' changes trajectory_groups of the step, which is not among what it writes. Add "
            "'trajectory_groups' to `writes` in its record, or leave that as it is.",
        ),
        (record(ShapesRewards), CHANGES, "Add 'episodes' or 'rewards' to `writes`"),
        (record(ShapesRewards, writes="trajectory_groups"), CHANGES, "changes rewards of the step"),
        (record(EditsTasks, reads="tasks"), CHANGES, "changes tasks of the step"),
        (record(MovesEpisodes, reads="episodes"), CHANGES, "changes generated of the step"),
        (record(RenamesRollouts), CHANGES, "changes tokens of trajectories of the step"),
        (record(Skips), CHANGES, "changes skip_reason of the step"),
        (record(TimesItself), CHANGES, "No stage may; leave notes"),
        (record(RenamesTrajectories), CHANGES, "changes trajectory_names of the step"),
        (record(ClipsAdvantages, reads="batch"), CHANGES, "changes batch.advantages of the step"),
        (record(CountsSteps), CHANGES, "No stage may; leave notes for other stages in step.extras."),
        (record(SkipsAhead), CHANGES, "Add 'weights' to `writes`"),
        (
            record(Divides),
            "it_works_on_a_step_without_anything_in_it",
            "ZeroDivisionError: division by zero. Declare all that it reads; and where there is nothing to "
            "do, do nothing.",
        ),
        (record(NotANumber), "its_metrics_are_finite_numbers", "gives metric 'mine/nan' the value nan."),
        (record(NotAsync), "it_needs_only_what_it_declares_to_read", "Write `async def __call__(self, step)`."),
        (record(Forgets), RESUMED, "goes on differently when it is resumed after step 0. Put everything"),
        (record(KeepsMoreThanItSays), RESUMED, "take all of it up in load_state_dict."),
        (record(KeepsObjects), RESUMED, "has a state that is not JSON data: Object of type set"),
        (
            record(Stage, is_rollout_stage=True),
            "it_keeps_nothing_between_steps_if_it_plays",
            "stage 'mine' plays, and keeps something between steps (it has a state_dict). Remove `is_rollout_stage",
        ),
        (
            record(TakesOptionsAlone),
            "it_needs_only_what_it_declares_to_read",
            "What `load` returns is called with the context of the run and the options.",
        ),
        (
            record(Stage, reads="trajectory_grups"),
            "what_it_reads_is_written_by_some_stage",
            "reads 'trajectory_grups', which no installed stage writes. Did you mean 'trajectory_groups'",
        ),
    ],
)
def test_a_bad_one_is_told_what_to_mend(complaint: Any, plugin: StagePlugin[Any], test: str, told: str) -> None:
    assert told in complaint(StageContract, plugin, test)


def test_a_stage_may_ask_for_another_context(complaint: Any) -> None:
    class LooksAtTheSeed(Stage):
        def __init__(self, context: StageContext, params: NoParams) -> None:
            assert context.seed == 7

    test = "it_needs_only_what_it_declares_to_read"
    assert "AssertionError" in complaint(StageContract, record(LooksAtTheSeed), test)
    seven = {"context": lambda self: stage_context(seed=7)}
    assert "AssertionError" not in complaint(StageContract, record(LooksAtTheSeed), test, **seven)
