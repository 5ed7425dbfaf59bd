"""Groups from plain numbers, what an estimator is given of them, and estimators by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rllm_core.algorithms.columns import build_estimator_input
from rllm_core.contracts.estimator import AdvantageInput, Advantages, EstimatorPlugin
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_estimators.plugin import rllm_estimators

Member = float | Mapping[str, Any]
"""A reward, or a mapping with `reward`, `turns` (pairs of observed and sampled tokens), `steps` (their rewards) and
`parts` (reward components)."""


def _trajectory(member: Member) -> Trajectory:
    told = member if isinstance(member, Mapping) else {"reward": member}
    trajectory = Trajectory("agent", reward=float(told["reward"]))
    history: list[int] = []
    turns = told.get("turns", [(2, 2)])
    rewards = told.get("steps", [None] * len(turns))
    for (observed, sampled), reward in zip(turns, rewards, strict=True):
        history = [*history, *[7] * observed]
        trajectory.add_step(history, [9] * sampled, [-1.0] * sampled, reward=reward)
        history = [*history, *[9] * sampled]
    if "parts" in told:
        trajectory.info["reward_components"] = dict(told["parts"])
    return trajectory


def make_inputs(groups: Sequence[Sequence[Member]]) -> AdvantageInput:
    made = [
        TrajectoryGroup(group_id=f"t{task}:agent", trajectories=[_trajectory(member) for member in members])
        for task, members in enumerate(groups)
    ]
    batch = build_batch(made or [TrajectoryGroup(group_id="t:agent", trajectories=[])])
    return _with_model_columns(build_estimator_input(batch, np.ones(len(batch.groups), np.bool_)))


def _with_model_columns(inputs: AdvantageInput) -> AdvantageInput:
    """What models would say: numbers that belong to the trajectory, wherever it stands in the batch."""
    lengths = np.diff(inputs.token_offsets)
    position = np.arange(len(inputs.loss_mask)) - np.repeat(inputs.token_offsets[:-1], lengths)
    probabilities = (1 + position % 5) / 8
    columns = {
        "values": position % 7 / 3 + 0.25 * np.repeat(inputs.rewards, lengths),
        "old_logprobs": np.log(probabilities),
        "sum_pi_squared": probabilities**2 + (1 - probabilities) ** 2 / (1 + position % 3),
        "sampling_logprobs": np.log(probabilities) + (position % 4 - 1.5) / 4,
    }
    columns = {name: column.astype(np.float32) for name, column in columns.items()}
    columns["greedy_rewards"] = 0.5 * inputs.rewards - 0.25
    for column in columns.values():
        column.flags.writeable = False
    return replace(inputs, **columns)


RECORDS: dict[str, EstimatorPlugin[Any]] = {record.name: record for record in rllm_estimators()}


def call(name: str, inputs: AdvantageInput, **options: Any) -> Advantages:
    """Estimate by name, with these options."""
    result: Advantages = RECORDS[name].load()(inputs, RECORDS[name].params(**options))
    return result


@pytest.fixture(scope="session")
def records() -> dict[str, EstimatorPlugin[Any]]:
    return RECORDS
