"""The same training batch for our estimators, verl's and TRL's, and the compared functions.

Each side gets its natural form. Preparing it is not timed. Ours has flat columns without padding, with rewards in
float64. verl has padded float32 tensors (n, tokens) with the reward on the last token and a string per group. TRL has
one reward per trajectory. All trajectories have equally many tokens, so padding costs verl nothing. One token in four
is an observation, as in a conversation with tools.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rllm_core.contracts.estimator import AdvantageInput

GROUP = 8
COMPONENTS = ("correct", "format")
GAMMA, LAMBDA = 0.99, 0.95


@dataclass(frozen=True)
class Case:
    """One of our estimators, and the function of another library that gives the same numbers."""

    name: str
    theirs: Callable[[SimpleNamespace, SimpleNamespace], Tensor]
    """The other library's computation, from its functions and a padded batch."""
    options: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    """A note on the row. Empty for verl's function of the same name."""
    library: str = "verl"
    per_token: bool = False
    target: float | None = None
    """The target speedup. None if there is no target."""


@dataclass(frozen=True, eq=False)
class Batch:
    """The same trajectories in two forms. Per-token columns share their memory."""

    ours: AdvantageInput
    padded: SimpleNamespace


def batch_of(n: int, tokens: int) -> Batch:
    """Make n trajectories with this number of tokens each."""
    random = np.random.default_rng(0)
    mask = np.arange(tokens) % 32 < 24
    mask[-1] = True
    rewards, greedy = random.normal(size=n), random.normal(size=n)
    components = random.normal(size=(n, len(COMPONENTS)))
    probabilities = random.random((n, tokens), dtype=np.float32) * np.float32(0.9) + np.float32(0.05)
    per_token = {
        "values": random.random((n, tokens), dtype=np.float32),
        "sum_pi_squared": probabilities**2 + np.float32(0.5) * (1 - probabilities) ** 2,
        "old_logprobs": np.log(probabilities, out=probabilities),
    }
    ends = np.arange(n + 1)
    ours = AdvantageInput(
        rewards=rewards,
        group_offsets=np.arange(0, n + 1, GROUP),
        response_lengths=np.full(n, int(mask.sum())),
        step_offsets=ends,
        step_rewards=np.full(n, np.nan),
        token_offsets=ends * tokens,
        loss_mask=np.tile(mask, n),
        groups=[],
        greedy_rewards=greedy,
        component_names=COMPONENTS,
        reward_components=components,
        **{name: column.reshape(-1) for name, column in per_token.items()},
    )
    on_last = torch.zeros(n, tokens)
    on_last[:, -1] = torch.tensor(rewards)
    padded = SimpleNamespace(
        rewards=on_last,
        mask=torch.tensor(mask, dtype=torch.float32).repeat(n, 1),
        index=np.array([f"task {row // GROUP}" for row in range(n)], dtype=object),
        scores=torch.tensor(rewards)[:, None],
        greedy=torch.tensor(greedy, dtype=torch.float32),
        components=dict(zip(COMPONENTS, components.T, strict=True)),
        whole={"prompts": torch.zeros(n, 0), "attention_mask": torch.ones(1, tokens, dtype=torch.long).expand(n, -1)},
        **{name: torch.from_numpy(column) for name, column in per_token.items()},
    )
    return Batch(ours, padded)


def _grouped(function: str, **options: Any) -> Callable[[SimpleNamespace, SimpleNamespace], Tensor]:
    """One of verl's estimators that compare the rewards of a group."""
    return lambda verl, batch: getattr(verl, function)(batch.rewards, batch.mask, batch.index, **options)[0]


def _token_baseline(function: str) -> Callable[[SimpleNamespace, SimpleNamespace], Tensor]:
    return lambda verl, batch: getattr(verl, function)(
        batch.rewards, batch.mask, batch.index, batch.old_logprobs, batch.sum_pi_squared
    )[0]


def _gdpo(verl: SimpleNamespace, batch: SimpleNamespace) -> Tensor:
    result: Tensor = verl.compute_gdpo_outcome_advantage(
        batch.rewards,
        batch.mask,
        batch.index,
        config={"gdpo_reward_keys": list(COMPONENTS)},
        non_tensor_batch=batch.components,
        batch=batch.whole,
    )[0]
    return result


def _reinforce(verl: SimpleNamespace, batch: SimpleNamespace) -> Tensor:
    result: Tensor = verl.compute_remax_outcome_advantage(batch.rewards, torch.zeros_like(batch.greedy), batch.mask)[0]
    return result


VERL: dict[str, Any] = {"dialect": "verl"}
TRL_GRPO = {"multi_objective_aggregation": "sum_then_normalize", "scale_rewards": "group"}
TRL_RLOO = {"beta": 0.0, "reward_clip_range": None, "normalize_advantages": False}
CASES = [
    Case("grpo", _grouped("compute_grpo_outcome_advantage"), VERL, target=10),
    Case(
        "dr_grpo",
        _grouped("compute_grpo_outcome_advantage", norm_adv_by_std_in_grpo=False),
        VERL,
        target=10,
    ),
    Case("rloo", _grouped("compute_rloo_outcome_advantage"), VERL, target=10),
    Case(
        "reinforce_plus_plus_baseline",
        _grouped("compute_reinforce_plus_plus_baseline_outcome_advantage"),
        VERL,
        target=10,
    ),
    Case("opo", _grouped("compute_opo_outcome_advantage"), target=10),
    Case("gpg", _grouped("compute_gpg_outcome_advantage"), target=10),
    Case(
        "grpo_passk",
        _grouped("compute_grpo_passk_outcome_advantage", config={"norm_adv_by_std_in_grpo": True}),
        target=10,
    ),
    Case("gdpo", _gdpo, target=10),
    Case(
        "remax",
        lambda verl, batch: verl.compute_remax_outcome_advantage(batch.rewards, batch.greedy, batch.mask)[0],
        label="verl has no loop here",
    ),
    Case("reinforce", _reinforce, label="verl's remax, baseline 0"),
    Case("grpo", _grouped("compute_grpo_vectorized_outcome_advantage"), VERL, label="verl's vectorised"),
    Case("rloo", _grouped("compute_rloo_vectorized_outcome_advantage"), VERL, label="verl's vectorised"),
    Case(
        "gae",
        lambda verl, batch: verl.compute_gae_advantage_return(batch.rewards, batch.values, batch.mask, GAMMA, LAMBDA)[
            0
        ],
        {"gamma": GAMMA, "lam": LAMBDA},
        per_token=True,
        target=3,
    ),
    Case(
        "reinforce_plus_plus",
        lambda verl, batch: verl.compute_reinforce_plus_plus_outcome_advantage(
            batch.rewards, batch.mask, SimpleNamespace(gamma=GAMMA)
        )[0],
        {"gamma": GAMMA},
        per_token=True,
        target=3,
    ),
    Case("otb", _token_baseline("compute_optimal_token_baseline_advantage"), per_token=True, target=3),
    Case("tir_otb", _token_baseline("compute_multi_turn_optimal_token_baseline_advantage"), per_token=True, target=3),
    Case(
        "grpo",
        lambda trl, batch: trl.grpo_advantages(batch.scores, GROUP, **TRL_GRPO),
        {"dialect": "trl"},
        label="TRL's formula, not spread to tokens",
        library="trl",
    ),
    Case(
        "rloo",
        lambda trl, batch: trl.rloo_advantages(batch.scores, GROUP, **TRL_RLOO),
        {"dialect": "trl"},
        label="TRL's formula, not spread to tokens",
        library="trl",
    ),
]
