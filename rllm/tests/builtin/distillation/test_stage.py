"""The stages `distill` and `topk_kl`: advantages, targets, metrics, and results of a teacher that they reject."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from expecting import expect_error
from numpy.typing import NDArray

from rllm.builtin.distillation.stages import Distill, DistillParams, TopkKl, TopkKlParams
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Step, Trajectory, TrajectoryGroup
from rllm_core.errors import PluginError
from rllm_plugin_kit import stage_context

OLD = np.array([0, -1.0, -2.0], np.float32)
TEACHER = np.array([9, -0.5, -4.0], np.float32)


class Fixed:
    """A teacher that returns the same array for each batch."""

    def __init__(self, logprobs: NDArray[np.float32]) -> None:
        self._logprobs = logprobs

    async def logprobs(self, batch: TokenBatch) -> NDArray[np.float32]:
        return self._logprobs


def distilled(
    logprobs: NDArray[np.float32], weight: float = 1.0, estimators: tuple[str, ...] = (), **columns: Any
) -> TrainStep:
    trajectory = Trajectory("agent", [Step([1], [2, 3], [-1.0, -2.0])])
    batch = build_batch([TrajectoryGroup(group_id="task:agent", trajectories=[trajectory])])
    step = TrainStep(global_step=0, epoch=0, total_steps=1, tasks=[])
    step.estimators = estimators
    step.batch = batch.with_columns(old_logprobs=OLD, **columns)
    stage = Distill(stage_context(teacher=Fixed(logprobs)), DistillParams(weight=weight))
    asyncio.run(stage(step))
    return step


def test_advantage_is_the_difference_of_logprobs() -> None:
    step = distilled(TEACHER)
    assert step.filled_batch.advantages is not None
    assert step.filled_batch.advantages.tolist() == [0, 0.5, -2.0]
    assert step.metrics["distill/kl"] == 0.75
    assert step.metrics["distill/tokens"] == 2
    assert step.estimators == ("distill",)


def test_weight_is_added_to_earlier_advantages() -> None:
    step = distilled(TEACHER, 0.5, ("grpo",), advantages=np.array([0, 1.0, 1.0], np.float32))
    assert step.filled_batch.advantages is not None
    assert step.filled_batch.advantages.tolist() == [0, 1.25, 0]
    assert step.estimators == ("grpo + distill",)


@pytest.mark.parametrize("logprobs", [TEACHER[1:], TEACHER * np.inf, TEACHER * np.nan], ids=["short", "inf", "nan"])
def test_unusable_logprobs_are_an_error(logprobs: NDArray[np.float32]) -> None:
    with expect_error(PluginError, "bad-teacher-result"):
        distilled(logprobs)


IDS = np.array([[5, 6], [7, 5]])
LOGPROBS = np.log([[0.5, 0.25], [0.75, 0.125]])


class FixedTable:
    """A teacher that returns the same arrays for each batch."""

    def __init__(self, ids: NDArray[Any], logprobs: NDArray[Any]) -> None:
        self._found = ids, logprobs

    async def logprobs(self, batch: TokenBatch) -> NDArray[np.float32]:
        raise NotImplementedError

    async def top_logprobs(self, batch: TokenBatch, k: int | None) -> tuple[NDArray[Any], NDArray[Any]]:
        assert k == 2
        return self._found


def distilled_topk(ids: NDArray[Any] = IDS, logprobs: NDArray[Any] = LOGPROBS, **columns: Any) -> TrainStep:
    trajectory = Trajectory("agent", [Step([1], [2, 3], [-1.0, -2.0])])
    batch = build_batch([TrajectoryGroup(group_id="task:agent", trajectories=[trajectory])])
    step = TrainStep(global_step=0, epoch=0, total_steps=1, tasks=[])
    step.estimators, step.batch = ("grpo",) * len(columns), batch.with_columns(**columns)
    stage = TopkKl(stage_context(teacher=FixedTable(ids, logprobs)), TopkKlParams(k=2, beta=0.25, weight=0.5))
    asyncio.run(stage(step))
    return step


def test_targets_are_the_teachers_and_advantages_are_zero() -> None:
    step = distilled_topk()
    targets = step.filled_batch.targets
    assert targets is not None
    assert (targets.ids.tolist(), targets.beta, targets.weight) == (IDS.tolist(), 0.25, 0.5)
    np.testing.assert_allclose(targets.logprobs, LOGPROBS, rtol=1e-6)
    assert (targets.ids.dtype, targets.logprobs.dtype) == (np.int32, np.float32)
    assert step.filled_batch.advantages is not None
    assert not step.filled_batch.advantages.any()
    assert step.estimators == ("topk_kl",)
    assert step.metrics["distill/teacher_mass"] == pytest.approx(0.8125)
    assert step.metrics["distill/tokens"] == 2


def test_earlier_advantages_stay() -> None:
    step = distilled_topk(advantages=np.array([0, 1.0, -1.0], np.float32))
    assert step.filled_batch.advantages is not None
    assert step.filled_batch.advantages.tolist() == [0, 1, -1]
    assert step.estimators == ("grpo",)


@pytest.mark.parametrize(
    ("ids", "logprobs"),
    [(IDS[1:], LOGPROBS[1:]), (IDS, LOGPROBS[:, :1]), (IDS[0], LOGPROBS[0]), (IDS, LOGPROBS * np.inf)],
    ids=["short", "narrow", "flat", "inf"],
)
def test_unusable_tables_are_an_error(ids: NDArray[Any], logprobs: NDArray[Any]) -> None:
    with expect_error(PluginError, "bad-teacher-result"):
        distilled_topk(ids, logprobs)
