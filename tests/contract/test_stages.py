"""Every stage of this repository keeps the contract of stages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.stage import StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import TokenBatch
from rllm_core.data.types import Episode, Step, Trajectory
from rllm_plugin_kit import StageContract, stage_context
from rllm_record.steps import Sampler
from rllm_record.stored import StoredRollout, StoredTask

globals().update(StageContract.for_each("rllm-core"))


class TestGreedyBaselineThatIsNeeded(StageContract):
    name = "greedy_baseline"

    def context(self) -> StageContext:
        return stage_context(needs=frozenset({"greedy_rewards"}))


class TestStored(StageContract):
    name = "rllm-record/stored"

    def prepare(self, step: TrainStep) -> None:
        step.tasks = [StoredTask(id=task.id, rollouts=[_rollout(task.id)]) for task in step.tasks]


def _rollout(task: str) -> StoredRollout:
    trajectory = Trajectory("agent", [Step([1], [2], [-0.5])], 1.0)
    return StoredRollout(Episode(id=f"{task}:0", trajectories=[trajectory]), Sampler())


class TestDistill(StageContract):
    name = "rllm/distill"
    options = ({}, {"weight": 0.5})

    def context(self) -> StageContext:
        return stage_context(teacher=Constant())


class TestTopkKl(StageContract):
    name = "rllm/topk_kl"
    options = ({}, {"k": None, "beta": 1.0, "weight": 0.5})

    def context(self) -> StageContext:
        return stage_context(teacher=Constant())


class TestEcho(StageContract):
    name = "rllm/echo"
    options = ({}, {"weight": 0.5, "roles": ["tool"]})


class Constant:
    """A teacher that gives each token the same log-prob, and each position the same two tokens."""

    async def logprobs(self, batch: TokenBatch) -> NDArray[np.float32]:
        return np.full(len(batch.tokens), -1.0, np.float32)

    async def top_logprobs(self, batch: TokenBatch, k: int | None) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        shape = int(batch.loss_mask.sum()), 2
        return np.tile(np.arange(2, dtype=np.int32), (shape[0], 1)), np.full(shape, -1.0, np.float32)
