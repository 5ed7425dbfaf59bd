"""Every estimator of this repository, in every dialect, called on a batch of tokens as in the framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rllm_core import builtin
from rllm_core.algorithms.estimation import EstimatorChoice, estimate
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_estimators import plugin as catalogue

RECORDS = {record.name: record for module in (builtin, catalogue) for record in module.rllm_estimators()}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in RECORDS},
    "dr_grpo_trl": ("dr_grpo", {"dialect": "trl"}),
    "gae": ("gae", {"whiten": False, "lam": 1.0}),
    "gae_whitened": ("gae", {"gamma": 0.9}),
    "gdpo_nemo": ("gdpo", {"dialect": "nemo"}),
    "grpo_plain": ("grpo", {"norm_adv_by_std_in_grpo": False}),
    "grpo_trl": ("grpo", {"dialect": "trl"}),
    "grpo_trl_plain": ("grpo", {"dialect": "trl", "norm_adv_by_std_in_grpo": False}),
    "grpo_verl": ("grpo", {"dialect": "verl"}),
    "grpo_verl_plain": ("grpo", {"dialect": "verl", "norm_adv_by_std_in_grpo": False}),
    "grpo_passk_plain": ("grpo_passk", {"norm_adv_by_std_in_grpo": False}),
    "maxrl_skyrl": ("maxrl", {"dialect": "skyrl"}),
    "mix": ("mix", {"parts": ["rllm-core/grpo", "rllm-estimators/spo"], "weights": [0.5, 0.5]}),
    "otb_corrected": ("otb", {"tis_mode": "token"}),
    "reinforce_plus_plus_baseline_verl": ("reinforce_plus_plus_baseline", {"dialect": "verl"}),
    "reinforce_plus_plus_of_steps": ("reinforce_plus_plus", {"use_step_rewards": True}),
    "rloo_trl": ("rloo", {"dialect": "trl"}),
    "rloo_verl": ("rloo", {"dialect": "verl"}),
    "step_reinforce_plain": ("step_reinforce", {"norm_adv_by_std_in_grpo": False}),
    "tir_otb_corrected": ("tir_otb", {"tis_mode": "sequence"}),
}
WITHOUT_A_CENTRE = {"gae", "gae_whitened", "rae", "reinforce", "remax"}
"""Estimators that do not compare trajectories of the batch, so equal rewards are no special case."""
TOKEN_BASELINES = {"otb", "otb_corrected", "tir_otb", "tir_otb_corrected"}
READ_LENGTHS = {
    *TOKEN_BASELINES,
    *("grpo_length", "gae", "gae_whitened", "gdpo", "opo", "reinforce_plus_plus", "reinforce_plus_plus_of_steps"),
    "reinforce_plus_plus_baseline_verl",
}
"""Estimators whose values change with the length of a trajectory, with the same reward."""

Turns = Sequence[tuple[int, int]]
Groups = Sequence[Sequence[Trajectory]]


def rollout(reward: float | None, turns: Turns = ((1, 2),)) -> Trajectory:
    """Return a trajectory with turns of observed and sampled tokens, and with all columns of estimators."""
    trajectory = Trajectory("agent", reward=reward)
    history: list[int] = []
    for read, said in turns:
        history = [*history, *[7] * read]
        trajectory.add_step(history, [9] * said, [-1.0] * said, reward=0.0)
        history = [*history, *[9] * said]
    if reward is not None:
        trajectory.info |= {"reward_components": {"whole": reward}, "greedy_reward": 0.5}
        if trajectory.steps:
            trajectory.steps[-1].reward = reward
    return trajectory


def of_rewards(groups: Sequence[Sequence[float]], said: int = 2) -> list[list[Trajectory]]:
    return [[rollout(reward, ((1, said),)) for reward in group] for group in groups]


def batch_of(groups: Groups) -> TokenBatch:
    """Return the batch with columns as from a model. A critic's values are all 0."""
    made = [
        TrajectoryGroup(group_id=f"t{task}:agent", trajectories=list(members)) for task, members in enumerate(groups)
    ]
    batch = build_batch(made or [TrajectoryGroup(group_id="t:agent", trajectories=[])])
    # Columns depend only on the number of earlier sampled tokens of a row, not on observations between them.
    position = np.concatenate([np.cumsum(row) for row in np.split(batch.loss_mask, batch.row_offsets[1:-1])])
    probabilities = (1 + position % 5) / 8
    columns = {
        "values": np.zeros(len(position)),
        "old_logprobs": np.log(probabilities),
        "sum_pi_squared": probabilities**2 + (1 - probabilities) ** 2 / 3,
    }
    return batch.with_columns(**{name: column.astype(np.float32) for name, column in columns.items()})


def with_options(name: str, **options: Any) -> EstimatorChoice:
    registered = Registered(plugin=RECORDS[name], distribution="tests", version="0")
    return PluginChoice(registered=registered, params=RECORDS[name].params(**options))


def advantages(label: str, groups: Groups) -> list[list[list[float]]]:
    """Return the advantages of the sampled tokens of each trajectory of each group."""
    name, options = VARIANTS[label]
    estimator = with_options(name, **options)
    batch = batch_of(groups)
    estimated = estimate(batch, lambda role: estimator).advantages
    owner = np.repeat(batch.trajectory, batch.row_lengths)[batch.loss_mask]
    each = iter(
        estimated[batch.loss_mask][owner == index].astype(float).tolist() for index in range(batch.n_trajectories)
    )
    return [[next(each) for _ in group] for group in groups]


def flat(groups: Sequence[Sequence[Sequence[float]]]) -> list[float]:
    return [value for group in groups for tokens in group for value in tokens]


def one_each(label: str, groups: Groups) -> list[float]:
    """Return the advantage of each trajectory, which all its tokens must have."""
    found = []
    for tokens in (tokens for group in advantages(label, groups) for tokens in group):
        assert len(set(tokens)) == 1
        found.append(tokens[0])
    return found
