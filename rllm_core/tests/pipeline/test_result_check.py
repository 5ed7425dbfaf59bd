"""Every group is in one place of a verdict, also in the first one after a resume."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from expecting import expect_error

from rllm_core.contracts import RejectionResult, TrainStep
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.errors import PipelineError
from rllm_core.pipeline.transform_stages import describe_misplaced_group, find_waiting_groups

MakeStep = Callable[..., TrainStep]
EPISODE = {"rllm.rejection_sample.enable": True, "rllm.rejection_sample.mode": "episode"}


def _group(task: str, *rewards: float) -> TrajectoryGroup:
    return TrajectoryGroup(
        group_id=f"{task}:agent",
        trajectories=[Trajectory("agent", reward=reward) for reward in rewards],
        metadata=[{"task_id": task, "is_correct": reward > 0} for reward in rewards],
    )


def test_groups_of_one_id_are_told_apart() -> None:
    one, other = _group("a"), _group("a")
    assert describe_misplaced_group(RejectionResult(train=[one], waiting=[other]), [one, other]) == ""
    assert describe_misplaced_group(RejectionResult(train=[one]), [one, other]) == "leaves out group 'a:agent'"


def test_no_groups_need_no_place() -> None:
    assert describe_misplaced_group(RejectionResult(train=[]), []) == ""


def test_restored_groups_are_recognized_by_id_and_count() -> None:
    offered, again, once_more, stranger = _group("a"), _group("a"), _group("a"), _group("b")
    result = RejectionResult(train=[offered, again], waiting=[once_more, stranger])
    found = find_waiting_groups(result, [offered], ["a:agent"])
    assert [id(group) for group in found] == [id(again)]


def test_lost_waiting_group_has_an_empty_stand_in() -> None:
    (stand_in,) = find_waiting_groups(RejectionResult(train=[]), [], ["a:agent"])
    assert describe_misplaced_group(RejectionResult(train=[]), [stand_in]) == "leaves out group 'a:agent'"


@pytest.fixture
def resumed(bench: Any, step: MakeStep) -> Callable[[Callable[[dict[str, Any]], None]], TrainStep]:
    """The step after a resume in which a group waited; the function may change the checkpoint."""

    def run(change: Callable[[dict[str, Any]], None]) -> TrainStep:
        stage = bench(EPISODE).stage("reject")
        asyncio.run(stage(step(trajectory_groups=[_group("a", 1.0, 1.0)])))
        state = json.loads(json.dumps(stage.state_dict()))
        change(state)
        fresh = bench(EPISODE).stage("reject")
        fresh.load_state_dict(state)
        training = step(trajectory_groups=[_group("b", 1.0, 0.0)])
        asyncio.run(fresh(training))
        assert fresh.state_dict()["waiting"] == []
        return training

    return run


def test_waiting_group_trains_after_a_resume(resumed: Any) -> None:
    done = resumed(lambda state: None)
    assert [group.group_id for group in done.trajectory_groups] == ["a:agent", "b:agent"]


def test_lost_group_after_resume_is_an_error(resumed: Any) -> None:
    with expect_error(PipelineError, "bad-rejection-result", "'a:agent'"):
        resumed(lambda state: state["state"]["gathered"].clear())


def test_invented_group_after_resume_is_an_error(resumed: Any) -> None:
    with expect_error(PipelineError, "bad-rejection-result", "'a:agent'"):
        resumed(lambda state: state["waiting"].clear())
