"""The stage `prefer` skips the update of a step whose loss needs more prompts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rllm.preferences.options import PreferParams
from rllm.preferences.stages import Prefer
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Step, Trajectory, TrajectoryGroup
from rllm_core.notices import forget_warnings


async def process(batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
    logprobs = np.where(batch.loss_mask, np.float32(-1), np.float32(0))
    return batch.with_columns(old_logprobs=logprobs, ref_logprobs=logprobs)


@pytest.mark.parametrize(("loss", "prompts", "skipped"), [("kto", 1, True), ("kto", 2, False), ("dpo", 1, False)])
def test_step_with_one_prompt_is_skipped_by_kto(
    loss: Any, prompts: int, skipped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_warnings()
    pair = [Trajectory(name, [Step([1], [2])]) for name in ("chosen", "rejected")]
    groups = [TrajectoryGroup(group_id=f"{at}:0:completion", trajectories=pair) for at in range(prompts)]
    step = TrainStep(global_step=0, epoch=0, total_steps=9, tasks=[], batch=build_batch(groups))
    context: Any = SimpleNamespace(backend=SimpleNamespace(process=process))
    asyncio.run(Prefer(context, PreferParams(loss=loss))(step))
    assert (step.skip_reason == "too_few_prompts") == skipped
    assert (step.filled_batch.advantages is None) == skipped
    assert ("data.train_batch_size" in capsys.readouterr().err) == skipped
