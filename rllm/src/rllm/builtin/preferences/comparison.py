"""The loss of a batch of completions: log-probs of the model and of the reference model, and metrics.

All tokens of a completion have the same derivative. So a loss of a pair needs no rows in one micro-batch: the
derivative becomes the advantage of each token, and the loss `reinforce` has the same gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rllm.builtin.preferences.rows import CHOSEN, MARGIN, check_completions
from rllm.rows.problem import naming
from rllm.rows.row_limit import RowParams
from rllm_core.contracts.backend import Backend
from rllm_core.contracts.params import Params
from rllm_core.data.batch import TokenBatch
from rllm_core.pipeline.batch_checks import check_old_logprobs


class PreferParams(Params):
    """Options of the stage ``prefer``."""

    loss: Literal["dpo", "ipo", "kto"] = "dpo"
    """Loss. `dpo` and `ipo` compare two completions. `kto` needs one completion with a label."""
    beta: float = Field(0.1, gt=0)
    """Strength with which the model stays near the reference model."""
    desirable_weight: float = Field(1.0, ge=0)
    """Weight of good completions in `kto`."""
    undesirable_weight: float = Field(1.0, ge=0)
    """Weight of bad completions in `kto`."""


class RewardModelParams(RowParams):
    """Options of the stage ``reward_model``."""

    loss: ClassVar[Literal["reward_model"]] = "reward_model"

    center_rewards_coefficient: float | None = Field(None, ge=0)
    """Weight of the squared sum of a pair's scores in the loss, so that the mean score stays near 0. null: 0."""


COLUMNS = frozenset({"old_logprobs", "ref_logprobs"})
MIN_PROMPTS = {"dpo": 1, "ipo": 1, "kto": 2, "reward_model": 1}
"""Minimum number of different prompts of a batch. KTO estimates its divergence from completions of other prompts."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """A batch with log-probs, the loss of its completions, and metrics of both."""

    batch: TokenBatch
    loss: PreferenceLoss
    totals: dict[str, tuple[float, int]]
    """Sum and count of each metric, over pairs or completions. A batch without good or bad completions lacks theirs."""

    @property
    def metrics(self) -> dict[str, float]:
        """Means over pairs, or over completions for KTO."""
        return {name: total / count for name, (total, count) in self.totals.items()}

    def advantages(self) -> NDArray[np.float32]:
        """Return the negative derivative of the loss by each token's log-prob, (n_token,)."""
        slopes = self.loss.slopes.ravel()[_trajectories(self.batch)]
        return np.where(self.batch.loss_mask, -slopes, 0).astype(np.float32)


async def compare(backend: Backend, batch: TokenBatch, params: PreferParams | RewardModelParams) -> Comparison:
    """Return the loss of the batch under the current weights. Each group has a row of data's completions in order.

    Args:
        backend: computes the log-probs.
        batch: at least `MIN_PROMPTS` prompts, see `count_prompts`.
        params: the loss and its options.

    Raises:
        ConfigError: a row has a label, and the loss compares pairs.
        RolloutError: a log-prob is not finite.
    """
    for group in batch.groups:
        with naming(f"Row {group.group_id.rsplit(':', 2)[0]!r}"):
            check_completions([each.name for each in group.trajectories], params.loss)
    batch = await _with_logprobs(backend, batch)
    good = np.array([each.name == CHOSEN for group in batch.groups for each in group.trajectories])
    if isinstance(params, RewardModelParams):
        return _compare_scores(batch, good, params)
    ratios = _log_ratios(batch)
    divergence = 0.0
    if params.loss == "kto":
        # Completions of other prompts estimate the divergence. A good completion would have more than average.
        others = await _with_logprobs(backend, swap_completions(batch))
        divergence = max(0.0, float(_log_ratios(others)[others.trajectory].mean()))
        loss = kto(ratios, good, divergence, params)
    elif params.loss == "ipo":
        lengths = np.bincount(_trajectories(batch), batch.loss_mask).astype(np.float64).reshape(-1, 2)
        loss = ipo(ratios.reshape(-1, 2), lengths, params.beta)
    else:
        loss = dpo(ratios.reshape(-1, 2), params.beta)
    rewards = params.beta * ratios
    values: dict[str, NDArray[Any]] = {"loss": loss.losses}
    if params.loss == "kto":
        # The model prefers a completion if its reward is above the divergence.
        values |= {"kl": np.full(len(ratios), divergence), "accuracy": (ratios > divergence) == good}
    else:
        margins = rewards[0::2] - rewards[1::2]
        values |= {"accuracy": margins > 0, "margin": margins}
    values |= {"chosen_reward": rewards[good], "rejected_reward": rewards[~good]}
    return Comparison(batch, loss, _totals(values))


def _compare_scores(batch: TokenBatch, good: NDArray[np.bool_], params: RewardModelParams) -> Comparison:
    """Compare the scores of a reward model, which backends return as log-probs of a completion's only trained token."""
    assert batch.old_logprobs is not None
    scores = np.bincount(_trajectories(batch), np.where(batch.loss_mask, batch.old_logprobs, 0)).astype(np.float64)
    margins = np.array([group.trajectories[0].info.get(MARGIN, 0.0) for group in batch.groups])
    loss = bradley_terry(scores.reshape(-1, 2), margins, params.center_rewards_coefficient or 0.0)
    gaps = scores[0::2] - scores[1::2]
    values = {"loss": loss.losses, "accuracy": gaps > 0, "margin": gaps, "mean_reward": scores}
    return Comparison(batch, loss, _totals(values | {"chosen_reward": scores[good], "rejected_reward": scores[~good]}))


def _totals(values: dict[str, NDArray[Any]]) -> dict[str, tuple[float, int]]:
    return {name: (float(each.sum()), len(each)) for name, each in values.items() if len(each)}


def count_prompts(batch: TokenBatch) -> int:
    """Return the number of different prompts, because several rows may have the same one."""
    return len(set(_number_prompts(batch, _first_rows(batch)).tolist()))


def swap_completions(batch: TokenBatch) -> TokenBatch:
    """Return a batch in which each trajectory has its prompt, and a completion of a different prompt.

    Sorted by prompts, each gets the completion that is as many places before it as the most common prompt has
    completions. The first ones get the last completions. If all prompts differ, these are the pairs of TRL. If one
    prompt has more than half of the completions, some of its trajectories get none and are not in the result.
    No row becomes longer than the longest row. If a trajectory has several rows, only the first is used.
    """
    rows = _first_rows(batch)
    numbers = _number_prompts(batch, rows)
    order = np.argsort(numbers, kind="stable")
    pairs = zip(order, np.roll(order, np.bincount(numbers).max()), strict=True)
    used = [(one, other) for one, other in pairs if numbers[one] != numbers[other]]
    longest = int(batch.row_lengths.max())
    tokens, masks = [], []
    for one, other in used:
        prompt, completion = batch.tokens[rows[one].prompt], rows[other].completion
        length = longest - len(prompt)
        tokens.append(np.concatenate((prompt, batch.tokens[completion][:length])))
        masks.append(np.concatenate((np.zeros(len(prompt), np.bool_), batch.loss_mask[completion][:length])))
    mask = np.concatenate(masks)
    places = np.array([rows[one].row for one, _ in used])
    return replace(
        batch,
        tokens=np.concatenate(tokens),
        row_offsets=np.cumsum([0, *map(len, tokens)], dtype=np.int64),
        loss_mask=mask,
        sampling_logprobs=np.where(mask, np.float32(np.nan), np.float32(0)),
        trajectory=batch.trajectory[places],
        group=batch.group[places],
        role=batch.role[places],
        weight_version=batch.weight_version[places],
        old_logprobs=None,
        ref_logprobs=None,
    )


@dataclass(frozen=True)
class _Row:
    """The first row of a trajectory, and the places of its tokens in the batch."""

    row: int
    prompt: slice
    completion: slice


def _first_rows(batch: TokenBatch) -> list[_Row]:
    """Return the first row of each trajectory."""
    rows = []
    for row in np.unique(batch.trajectory, return_index=True)[1]:
        start, end = batch.row_offsets[row : row + 2]
        middle = start + int(batch.loss_mask[start:end].argmax())
        rows.append(_Row(int(row), slice(start, middle), slice(middle, end)))
    return rows


def _number_prompts(batch: TokenBatch, rows: list[_Row]) -> NDArray[np.int64]:
    """Return a number for each trajectory, (n_traj,), that is equal for equal prompts."""
    numbers: dict[bytes, int] = {}
    prompts = (batch.tokens[row.prompt].tobytes() for row in rows)
    return np.array([numbers.setdefault(prompt, len(numbers)) for prompt in prompts])


async def _with_logprobs(backend: Backend, batch: TokenBatch) -> TokenBatch:
    filled = await backend.process(batch, COLUMNS)
    check_old_logprobs(filled)
    return filled


def _log_ratios(batch: TokenBatch) -> Numbers:
    """Return log p - log p(reference), (n_traj,), summed over each trajectory's tokens."""
    assert batch.old_logprobs is not None
    assert batch.ref_logprobs is not None
    gaps = np.where(batch.loss_mask, batch.old_logprobs.astype(np.float64) - batch.ref_logprobs, 0)
    return np.bincount(_trajectories(batch), gaps).astype(np.float64)


def _trajectories(batch: TokenBatch) -> NDArray[np.int32]:
    """Return the trajectory of each token, (n_token,)."""
    return np.repeat(batch.trajectory, batch.row_lengths)


Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PreferenceLoss:
    """Losses whose mean is minimized, and its derivatives."""

    losses: Numbers
    """One loss for each pair, or for each completion."""
    slopes: Numbers
    """Derivative of the mean of `losses` by the log-prob of each completion. Shaped as the log-ratios."""


def dpo(log_ratios: Numbers, beta: float) -> PreferenceLoss:
    """Return -log sigmoid(beta (chosen - rejected)). Rafailov et al. 2023, arXiv:2305.18290.

    Args:
        log_ratios: (n_pair, 2) log p - log p(reference) of the chosen and of the rejected completion.
        beta: see `PreferParams`.
    """
    logits = beta * (log_ratios[:, 0] - log_ratios[:, 1])
    return PreferenceLoss(np.logaddexp(0, -logits), _of_both(-beta * _sigmoid(-logits) / len(logits)))


def ipo(log_ratios: Numbers, lengths: Numbers, beta: float) -> PreferenceLoss:
    """Return (chosen - rejected - 1 / (2 beta))² of means over tokens. Azar et al. 2023, arXiv:2310.12036.

    The paper has sums over tokens. TRL confirmed the means with the paper's authors.

    Args:
        log_ratios: see `dpo`.
        lengths: (n_pair, 2) number of tokens.
        beta: see `PreferParams`. The paper calls it tau.
    """
    means = log_ratios / lengths
    distances = means[:, 0] - means[:, 1] - 1 / (2 * beta)
    return PreferenceLoss(distances**2, _of_both(2 * distances / len(distances)) / lengths)


def bradley_terry(scores: Numbers, margins: Numbers, center: float) -> PreferenceLoss:
    """Return -log sigmoid(chosen - rejected - margin) + center (chosen + rejected)².

    Touvron et al. 2023, arXiv:2307.09288, have the margin. Eisenstein et al. 2023, arXiv:2312.09244, have the second
    term.

    Args:
        scores: (n_pair, 2) scores of the chosen and of the rejected completion.
        margins: (n_pair,) the differences that are already large enough.
        center: see `RewardModelParams`.
    """
    logits, sums = scores[:, 0] - scores[:, 1] - margins, scores.sum(axis=1)
    slopes = _of_both(-_sigmoid(-logits) / len(logits)) + (2 * center * sums / len(sums))[:, None]
    return PreferenceLoss(np.logaddexp(0, -logits) + center * sums**2, slopes)


def kto(log_ratios: Numbers, good: NDArray[np.bool_], divergence: float, params: PreferParams) -> PreferenceLoss:
    """Return 1 - sigmoid(±beta (log-ratio - divergence)), + for good completions.

    Ethayarajh et al. 2024, arXiv:2402.01306.

    Args:
        log_ratios: (n,) as in `dpo`.
        good: (n,) True for good completions.
        divergence: estimate of the KL divergence from the reference model, at least 0. It is a constant.
        params: beta and the weights.
    """
    signs = np.where(good, 1.0, -1.0)
    weights = np.where(good, params.desirable_weight, params.undesirable_weight)
    values = _sigmoid(signs * params.beta * (log_ratios - divergence))
    slopes = -weights * signs * params.beta * values * (1 - values) / len(values)
    return PreferenceLoss(weights * (1 - values), slopes)


def _of_both(slopes: Numbers) -> Numbers:
    """Return (n, 2) slopes of a loss that only depends on the difference of two values."""
    return np.stack((slopes, -slopes), axis=1)


def _sigmoid(values: Numbers) -> Numbers:
    return np.exp(-np.logaddexp(0, -values))
