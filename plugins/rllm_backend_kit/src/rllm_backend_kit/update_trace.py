"""The token trace of an update: each token's part in the loss, computed separately from the update.

Autograd on only the log-probs (and entropies) computes a coefficient. This needs no model and does not change the real
gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_backend_kit.loss import RoleLosses, RowRoles, clipped_tokens, loss_terms, objective_parts, sampled_entropy
from rllm_core.contracts.backend import UpdatePlan, UpdateResult
from rllm_core.contracts.loss import LossInput
from rllm_core.data.batch import TokenBatch
from rllm_core.data.record import OptimizerStep, TokenTrace

PARTS = ("policy_part", "kl_part", "entropy_part")


@dataclass(frozen=True, kw_only=True, eq=False)
class Coefficients:
    """Coefficients of some tokens, each (n_sampled,) float32, and the sums of their losses, per part of the loss."""

    policy_part: Tensor
    kl_part: Tensor
    entropy_part: Tensor
    """Derivative by the entropies, or by the log-probs if they estimate the entropies."""
    policy_loss: float
    kl_loss: float
    entropy_loss: float
    size: float
    """Sum of the sizes of what the three sum: how far rounding can move them."""


def coefficients(
    rows: RowRoles, inputs: LossInput, entropies: Tensor | None, weights: Tensor, plan: UpdatePlan, losses: RoleLosses
) -> Coefficients:
    """Derivatives of the loss, part by part.

    Args:
        rows: roles of the rows.
        inputs: whole rows, as the update's loss was given them.
        entropies: (n_sampled,) of the distributions of the tokens; None: they are estimated by `sampled_entropy`.
        weights: (n_sampled,) of the tokens in the loss.
        plan: what the loss is made of.
        losses: the policy losses of the update.
    """
    with torch.enable_grad():
        leaf = inputs.logprobs.detach().requires_grad_()
        separate = replace(inputs, logprobs=leaf)
        known = None if entropies is None else entropies.detach().requires_grad_()
        given = sampled_entropy(separate) if known is None else known
        parts = objective_parts(losses(rows, separate, plan), loss_terms(separate, plan), given, plan)
        policy_part = _derivative(parts.policy, weights, leaf)
        kl_part = _derivative(parts.kl, weights, leaf)
        entropy_part = _derivative(parts.entropy, weights, leaf if known is None else known)
    terms = [
        None if each is None else each.detach().double() * weights for each in (parts.policy, parts.kl, parts.entropy)
    ]
    policy_loss, kl_loss, entropy_loss = (0.0 if term is None else float(term.sum()) for term in terms)
    return Coefficients(
        policy_part=policy_part,
        kl_part=kl_part,
        entropy_part=entropy_part,
        policy_loss=policy_loss,
        kl_loss=kl_loss,
        entropy_loss=entropy_loss,
        size=sum(float(term.abs().sum()) for term in terms if term is not None),
    )


def _derivative(losses: Tensor | None, weights: Tensor, by: Tensor) -> Tensor:
    """(n,) the derivative of the weighted sum of `losses`; 0 without losses."""
    if losses is None or not losses.requires_grad:
        return torch.zeros_like(by)
    (gradient,) = torch.autograd.grad((losses * weights).sum(), by, allow_unused=True)
    return torch.zeros_like(by) if gradient is None else gradient


def clip_factor(norm: float, limit: float | None) -> float | None:
    """Return the factor by which torch's `clip_grad_norm_` multiplies a gradient; None if the limit is unknown."""
    return None if limit is None else min(1.0, limit / (norm + 1e-6))


class UpdateTrace:
    """Collects the trace of one update, micro-batch after micro-batch."""

    def __init__(self, batch: TokenBatch, plan: UpdatePlan, losses: RoleLosses, steps_per_epoch: int) -> None:
        self._batch = batch
        self._plan = plan
        self._losses = losses
        self._steps_per_epoch = steps_per_epoch
        self._columns: dict[str, list[NDArray[Any]]] = {}
        self._steps: dict[int, OptimizerStep] = {}
        self._sums = np.zeros(3)

    def add(
        self, number: int, source: NDArray[np.int64], inputs: LossInput, entropies: Tensor | None, weights: Tensor
    ) -> None:
        """Add whole rows of the optimizer step `number`.

        Args:
            number: counted from 0 over all epochs.
            source: (n_sampled,) where the tokens are in the batch.
            inputs: what the losses were given of them.
            entropies: (n_sampled,) of their distributions; None: the loss estimates them by `sampled_entropy`.
            weights: (n_sampled,) of the tokens in the loss.
        """
        found = coefficients(self._batch, inputs, entropies, weights, self._plan, self._losses)
        self._sums += found.policy_loss, found.kl_loss, found.entropy_loss
        parts = {name: getattr(found, name) for name in PARTS}
        rows = inputs.row_ids.cpu().numpy()
        self._append("row", rows.astype(np.int32))
        self._append("position", (source - self._batch.row_offsets[rows]).astype(np.int32))
        self._append("epoch", np.full(len(source), number // self._steps_per_epoch, np.int32))
        self._append("optimizer_step", np.full(len(source), number, np.int32))
        unknown = torch.full_like(inputs.logprobs, torch.nan)
        given = {
            "logprob": inputs.logprobs,
            "entropy": unknown if entropies is None else entropies,
            "weight": weights,
            "clipped": clipped_tokens(self._batch, inputs, self._plan),
        }
        for name, values in (given | parts).items():
            self._append(name, values.detach().float().cpu().numpy())

    def end_step(self, number: int, loss: float | None, *, loss_seed: int, learning_rate: float) -> None:
        """End the optimizer step of which rows were added.

        Args:
            number: of the step.
            loss: as the update has logged it; None: what is logged is not the sum of the tokens' losses.
            loss_seed: `LossInput.seed`.
            learning_rate: of the policy.
        """
        policy_loss, kl_loss, entropy_loss = self._sums.tolist()
        self._sums = np.zeros(3)
        self._steps[number] = OptimizerStep(
            epoch=number // self._steps_per_epoch,
            number=number,
            loss=loss,
            policy_loss=policy_loss,
            kl_loss=kl_loss,
            entropy_loss=entropy_loss,
            learning_rate=learning_rate,
            loss_seed=loss_seed,
        )

    def note_norm(self, number: int, grad_norm: float, clip_factor: float | None) -> None:
        """Note the norm of the policy's gradient in an optimizer step before clipping, and the factor of clipping, None
        where it is not known."""
        self._steps[number] = replace(self._steps[number], grad_norm=grad_norm, clip_factor=clip_factor)

    def result(self, metrics: dict[str, float]) -> UpdateResult:
        """The whole, with the metrics of the update."""
        columns: dict[str, NDArray[Any]] = {name: np.concatenate(parts) for name, parts in self._columns.items()}
        trace = TokenTrace(**columns) if columns else None
        steps = tuple(self._steps.values())
        return UpdateResult(metrics=metrics, trace=trace, optimizer_steps=steps, made_with=self._plan)

    def _append(self, name: str, values: NDArray[Any]) -> None:
        self._columns.setdefault(name, []).append(values)
