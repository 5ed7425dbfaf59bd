"""The stage `echo` finds the tokens of observations by the roles of their messages."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from rllm.builtin.echo.stage import Echo, EchoParams
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_plugin_kit import stage_context

USER, TOOL = {"role": "user", "content": "u"}, {"role": "tool", "content": "t"}


def trajectory(*turns: tuple[list[int], list[int], list[dict[str, str]]]) -> Trajectory:
    made = Trajectory("agent")
    for prompt, response, messages in turns:
        made.add_step(prompt, response, [-1.0] * len(response), messages=messages)
    return made


def trained(*trajectories: Trajectory, **options: Any) -> tuple[list[int], TrainStep]:
    """The tokens with a weight, and the step after the stage."""
    step = TrainStep(global_step=0, epoch=0, total_steps=1, tasks=[])
    step.batch = build_batch([TrajectoryGroup(group_id="task:agent", trajectories=list(trajectories))])
    asyncio.run(Echo(stage_context(), EchoParams(**options))(step))
    weights = step.filled_batch.observation_weights
    assert weights is not None
    assert set(weights.tolist()) <= {0.0, np.float32(options.get("weight", 0.1))}
    return step.filled_batch.tokens[weights > 0].tolist(), step


def test_tokens_between_responses_are_trained() -> None:
    made = trajectory(([1, 2], [3], [USER]), ([1, 2, 3, 4, 5], [6], [TOOL]), ([1, 2, 3, 4, 5, 6, 7], [8], [USER]))
    tokens, step = trained(made, weight=0.25)
    assert tokens == [4, 5, 7]
    assert step.metrics["echo/tokens"] == 3


def test_roles_choose_the_observations() -> None:
    made = trajectory(([1], [2], [USER]), ([1, 2, 3], [4], [TOOL]), ([1, 2, 3, 4, 5], [6], [TOOL, USER]))
    assert trained(made, roles=("tool",))[0] == [3]
    assert trained(made, roles=("user",))[0] == []
    assert trained(made)[0] == [3, 5]


def test_observations_without_messages_are_not_trained() -> None:
    assert trained(trajectory(([1], [2], [USER]), ([1, 2, 3], [4], [])))[0] == []


def test_rewritten_history_starts_a_prompt() -> None:
    """The second trajectory's rows are a segment without a sampled token (no row), and two segments with tokens."""
    first = trajectory(([1], [2], [USER]), ([1, 2, 3], [4], [USER]))
    second = trajectory(
        ([10], [], [USER]),
        ([20, 21], [22], [USER]),
        ([20, 21, 22, 23], [24], [TOOL]),
        ([30], [31], [USER]),
        ([30, 31, 32], [33], [USER]),
    )
    tokens, step = trained(first, second)
    assert tokens == [3, 23, 32]
    assert step.filled_batch.n_rows == 3
