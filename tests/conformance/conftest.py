"""The same random batch in our form (columns, ragged) and in the other libraries' (padded tensors), in float64.

The libraries' functions come from `tests/tools/peers.py`. If they are not installed, these tests are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_core import builtin
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_core.contracts.loss import LossInput
from rllm_core.updates.aggregation import token_weights
from rllm_estimators import plugin as catalogue

COMPONENTS = ("correct", "format")


@dataclass(frozen=True)
class Rewarded:
    """Trajectories in groups. `padded` contains the tokens after the prompt, one row each."""

    inputs: AdvantageInput
    padded: SimpleNamespace
    """Tensors (n_traj, width): `mask`, `rewards` (on each row's last sampled token), `values`, `old_logprobs`,
    `sum_pi_squared`; (n_traj,): `scores`, `greedy`; `index`, the group's name of each row; `components` by name."""

    def ours(self, advantages: Advantages) -> NDArray[np.float64]:
        """Return our estimator's advantage of every sampled token, (n_sampled,)."""
        if advantages.level == "token":
            return advantages.values[self.inputs.loss_mask]
        return np.repeat(advantages.values, self.inputs.response_lengths)

    def theirs(self, advantages: Tensor) -> NDArray[np.float64]:
        """Return the same of a padded result, (n_sampled,)."""
        return advantages[self.padded.mask.bool()].numpy().astype(np.float64)


@dataclass(frozen=True)
class Sampled:
    """Rows of tokens with log-probs, packed and padded."""

    inputs: LossInput
    lengths: NDArray[np.int64]
    padded: SimpleNamespace
    """Tensors (n_row, width): `mask`, `new` (a leaf with a gradient), `old`, `ref`, `advantages`."""
    longest: int = 16
    """The divisor of `seq-mean-token-sum-norm`."""

    def ours(self, losses: Tensor, mode: str) -> tuple[Tensor, Tensor]:
        """Return our token losses as one number, and its gradient, (n_sampled,)."""
        loss = (losses * torch.tensor(token_weights(mode, self.lengths, self.longest))).sum()
        (gradient,) = torch.autograd.grad(loss, self.inputs.logprobs)
        return loss.detach(), gradient

    def theirs(self, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Return a loss of padded tensors, and its gradient, (n_sampled,)."""
        (gradient,) = torch.autograd.grad(loss, self.padded.new)
        return loss.detach(), gradient[self.padded.mask.bool()]

    def with_a_row_of_nothing(self) -> Sampled:
        """Return the same batch with one more row, which is masked in the padded form."""
        columns = {name: column.detach() for name, column in vars(self.padded).items()}
        padded = {name: torch.cat((column, torch.zeros_like(column[:1]))) for name, column in columns.items()}
        padded["new"].requires_grad_()
        return Sampled(self.inputs, np.append(self.lengths, 0), SimpleNamespace(**padded))


def draw_groups(seed: int, *, smallest_group: int = 1) -> Rewarded:
    random = np.random.default_rng(seed)
    sizes = random.integers(smallest_group, 8, random.integers(2, 7))
    n = int(sizes.sum())
    width = 9
    # After the prompt: sampled tokens with observations between them, then padding.
    sampled = random.random((n, width)) < 0.6
    sampled[np.arange(width) >= random.integers(1, width + 1, n)[:, None]] = False
    sampled[:, 0] = True
    used = width - np.argmax(sampled[:, ::-1], axis=1)
    # Multiples of 1/8 as often as any number: groups of equal rewards and rewards of 0 must occur.
    scores = np.where(random.random(n) < 0.5, random.integers(-2, 3, n) / 8, random.normal(size=n))
    probabilities = random.random((n, width)) * 0.9 + 0.05
    columns = {
        "values": random.random((n, width)),
        "old_logprobs": np.log(probabilities),
        # At least the sampled token's own term, at most with one other token's term.
        "sum_pi_squared": probabilities**2 + random.random((n, width)) * (1 - probabilities) ** 2,
    }
    greedy = random.normal(size=n)
    components = random.integers(0, 4, (n, len(COMPONENTS))) / 4
    prompts = random.integers(1, 4, n)
    rows = [
        np.concatenate((np.zeros(prompt, bool), row[:end]))
        for prompt, row, end in zip(prompts, sampled, used, strict=True)
    ]
    flat = {
        name: np.concatenate(
            [np.append(np.full(prompt, 7.0), row[:end]) for prompt, row, end in zip(prompts, column, used, strict=True)]
        )
        for name, column in columns.items()
    }
    ends = np.arange(n + 1)
    inputs = AdvantageInput(
        rewards=scores,
        group_offsets=np.append(0, np.cumsum(sizes)),
        response_lengths=sampled.sum(axis=1),
        step_offsets=ends,
        step_rewards=np.full(n, np.nan),
        token_offsets=np.append(0, np.cumsum(prompts + used)),
        loss_mask=np.concatenate(rows),
        groups=[],
        greedy_rewards=greedy,
        component_names=COMPONENTS,
        reward_components=components,
        **flat,
    )
    rewards = np.zeros((n, width))
    rewards[np.arange(n), used - 1] = scores
    padded = SimpleNamespace(
        mask=torch.tensor(sampled, dtype=torch.float64),
        rewards=torch.tensor(rewards),
        scores=torch.tensor(scores),
        greedy=torch.tensor(greedy),
        index=np.repeat([f"task {group}" for group in range(len(sizes))], sizes),
        components=dict(zip(COMPONENTS, components.T, strict=True)),
        **{name: torch.tensor(column) for name, column in columns.items()},
    )
    return Rewarded(inputs, padded)


def draw_rows(seed: int, *, advantage_per_row: bool = False, n_rows: int | None = None, shortest: int = 1) -> Sampled:
    random = np.random.default_rng(seed)
    lengths = random.integers(shortest, 9, random.integers(1, 7) if n_rows is None else n_rows)
    mask = np.arange(int(lengths.max()) + 1) < lengths[:, None]
    old = np.log(random.random(mask.shape) * 0.9 + 0.05)
    columns = {
        "new": np.minimum(old + random.normal(scale=0.5, size=mask.shape), -1e-3),
        "old": old,
        "ref": np.minimum(old + random.normal(scale=0.5, size=mask.shape), -1e-3),
        "advantages": random.normal(size=mask.shape),
    }
    if advantage_per_row:
        columns["advantages"][:] = columns["advantages"][:, :1]
    tensors = {name: torch.tensor(column) for name, column in columns.items()}
    packed = {name: torch.tensor(column[mask]) for name, column in columns.items()}
    inputs = LossInput(
        logprobs=packed["new"].requires_grad_(),
        old_logprobs=packed["old"],
        ref_logprobs=packed["ref"],
        advantages=packed["advantages"],
        row_ids=torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)),
    )
    tensors["new"].requires_grad_()
    return Sampled(inputs, lengths, SimpleNamespace(mask=torch.tensor(mask, dtype=torch.float64), **tensors))


def one_token(log_ratio: float, advantage: float) -> Sampled:
    """Return one row of one token."""
    columns = {"new": -1.0, "old": -1.0 - log_ratio, "ref": -1.0, "advantages": advantage, "mask": 1.0}
    padded = {name: torch.tensor([[value]], dtype=torch.float64) for name, value in columns.items()}
    inputs = LossInput(
        logprobs=padded["new"][0].clone().requires_grad_(),
        old_logprobs=padded["old"][0],
        advantages=padded["advantages"][0],
        row_ids=torch.tensor([0]),
    )
    padded["new"].requires_grad_()
    return Sampled(inputs, np.array([1]), SimpleNamespace(**padded))


ESTIMATORS = {record.name: record for module in (builtin, catalogue) for record in module.rllm_estimators()}
LOSSES = {record.name: record for module in (builtin, catalogue) for record in module.rllm_losses()}


def estimate(name: str, inputs: AdvantageInput, **options: Any) -> Advantages:
    """Estimate by name, with these options."""
    result: Advantages = ESTIMATORS[name].load()(inputs, ESTIMATORS[name].params(**options))
    return result


def token_losses(name: str, inputs: LossInput, **options: Any) -> Tensor:
    """Return the loss of each token by name, with these options."""
    result: Tensor = LOSSES[name].load()(inputs, LOSSES[name].params(**options))
    return result


@pytest.fixture(scope="session")
def verl() -> SimpleNamespace:
    return _peer("verl")


@pytest.fixture(scope="session")
def trl() -> SimpleNamespace:
    return _peer("trl")


def _peer(name: str) -> SimpleNamespace:
    import peers

    try:
        functions: SimpleNamespace = getattr(peers, name)()
    except peers.PeerMissingError as missing:
        pytest.skip(str(missing))
    return functions
