"""Weights of tokens in losses at the start of an update: at the sampling log-probs, so at importance ratio 1.

The module uses torch. It is imported only if the user selects a loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.loss import LossInput, LossPlugin, PolicyLoss
from rllm_core.data.batch import TokenBatch
from rllm_core.pipeline import check_sampling_logprobs
from rllm_core.schema.run_config import RunConfig
from rllm_core.seeding import derive_seed
from rllm_core.updates.aggregation import token_weights
from rllm_core.updates.losses import checked
from rllm_view.rescoring.scores import LossTallies, LossTally
from rllm_view.rescoring.setups import label_of


class LossProbe:
    """Applies losses to the batches of a replay."""

    def __init__(self, losses: Sequence[PluginChoice[LossPlugin[Any]]], config: RunConfig) -> None:
        self._losses: list[tuple[PluginChoice[LossPlugin[Any]], PolicyLoss]] = [
            (chosen, chosen.registered.load()) for chosen in losses
        ]
        self._aggregation = config.rllm.algorithm.loss_agg_mode
        self._max_response_length = config.data.max_response_length
        self._seed = config.rllm.trainer.seed

    def add(self, batch: TokenBatch, global_step: int, setup: str, tallies: LossTallies) -> None:
        """Add a batch with `advantages` and `old_logprobs`.

        Raises:
            RolloutError: a sampled token was stored without its log-prob.
            LossError: a loss returned something that is not one finite number per sampled token.
        """
        check_sampling_logprobs(batch, "`rllm rescore --loss`", "Leave --loss out, or store episodes with log-probs.")
        weights = _weights(batch, self._aggregation, self._max_response_length)
        seed = derive_seed(derive_seed(self._seed, "update", global_step), "loss", 0)
        for role, chosen, inputs in _inputs(batch, seed):
            for loss, function in self._losses:
                token_losses = function(inputs, loss.params)
                token_losses = checked(token_losses, inputs, f"loss {loss.plugin.name!r} for role {role!r}")
                tally = tallies.setdefault((role, setup, label_of(loss)), LossTally())
                tally.add(
                    loss=float(token_losses.detach().double().numpy() @ weights[chosen]),
                    gradients=_gradients(token_losses, inputs.logprobs),
                    advantages=inputs.advantages.numpy(),
                )


def _weights(batch: TokenBatch, aggregation: str, max_response_length: int) -> NDArray[np.float64]:
    """(n_token,) weight of every sampled token in the loss of the whole batch, 0 elsewhere."""
    rows = np.repeat(np.arange(batch.n_rows), batch.row_lengths)
    sampled = np.bincount(rows[batch.loss_mask], minlength=batch.n_rows)
    weights = np.zeros(len(batch.tokens))
    weights[batch.loss_mask] = token_weights(aggregation, sampled, max_response_length)
    return weights


def _inputs(batch: TokenBatch, seed: int) -> Iterator[tuple[str, NDArray[np.bool_], LossInput]]:
    """Each role with its sampled tokens, (n_token,) bool, and what a loss is given of them."""
    assert batch.advantages is not None
    assert batch.old_logprobs is not None
    rows = np.repeat(np.arange(batch.n_rows), batch.row_lengths)
    for index, role in enumerate(batch.roles):
        chosen = batch.loss_mask & (batch.role[rows] == index)
        if not chosen.any():
            continue
        logprobs = torch.from_numpy(batch.old_logprobs[chosen]).requires_grad_()
        row_ids = torch.from_numpy(rows[chosen])
        yield role, chosen, LossInput.from_batch(batch, np.flatnonzero(chosen), logprobs, row_ids, seed)


def _gradients(token_losses: Tensor, logprobs: Tensor) -> NDArray[np.float64]:
    """(n_sampled,) d (sum of token losses) / d log-prob."""
    (gradients,) = torch.autograd.grad(token_losses.sum(), logprobs, allow_unused=True, materialize_grads=True)
    values: NDArray[np.float64] = gradients.double().numpy()
    return values
