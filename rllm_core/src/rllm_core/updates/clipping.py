"""Which sampled tokens a policy loss clips, and their share as a metric."""

from __future__ import annotations

import torch
from torch import Tensor

from rllm_core.algorithms.options import PpoParams
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.loss import LossInput
from rllm_core.errors import LossError, failures_as
from rllm_core.updates.losses import importance_ratio
from rllm_core.updates.role_losses import RowRoles, tokens_by_role
from rllm_core.updates.update_metrics import Means


def surrogate_clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """(n_sampled,) bool, tokens of which `clipped_surrogate` takes the clipped value.

    These are ratios above 1 + high where A > 0, and below 1 - low where A < 0. verl counts them as
    ``actor/pg_clipfrac``, TRL as ``clip_ratio/region_mean``.
    """
    return ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - low))


def ppo_clipped(inputs: LossInput, params: PpoParams) -> Tensor:
    """(n_sampled,) bool, tokens that `ppo` clips, those of its dual clip included."""
    ratio = importance_ratio(inputs)
    clipped = surrogate_clipped(ratio, inputs.advantages, *params.eps_low_high)
    if params.clip_ratio_c is None:
        return clipped
    return clipped | ((inputs.advantages < 0) & (ratio > params.clip_ratio_c))


@torch.no_grad()
def note_clipping(means: Means, rows: RowRoles, inputs: LossInput, plan: UpdatePlan) -> None:
    """Note the share of clipped tokens, among those of roles with a loss that clips.

    Raises:
        LossError: what counts the tokens of a loss failed, or returned something else than one bool per token.
    """
    for role, tokens in tokens_by_role(rows, inputs):
        choice = plan.losses[role]
        if choice.plugin.load_clipped is None:
            continue
        who = f"What counts the clipped tokens of loss {choice.plugin.name!r} for role {role!r}"
        with failures_as(LossError, who):
            clipped = choice.plugin.load_clipped()(tokens, choice.params)
        if not isinstance(clipped, Tensor) or clipped.dtype != torch.bool or clipped.shape != tokens.logprobs.shape:
            raise LossError(f"{who} returned no bool for each token.", "Return a tensor like inputs.logprobs > bound.")
        means.add("actor/clip_fraction", clipped.float())
