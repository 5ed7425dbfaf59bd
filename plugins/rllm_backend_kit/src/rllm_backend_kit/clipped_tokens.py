"""Which tokens the policy losses of an update clip, as far as they say so."""

from __future__ import annotations

import torch
from torch import Tensor

from rllm_backend_kit.role_losses import RowRoles, places_by_role
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.loss import LossInput
from rllm_core.errors import LossError, failures_as


@torch.no_grad()
def clipped_tokens(rows: RowRoles, inputs: LossInput, plan: UpdatePlan) -> Tensor:
    """(n_sampled,) float32: 1 for tokens that are clipped, 0 for others, NaN where the role's loss does not say.

    Raises:
        LossError: what counts the tokens of a loss failed, or returned something else than one bool per token.
    """
    found = torch.full_like(inputs.logprobs, torch.nan, dtype=torch.float32)
    for role, chosen in places_by_role(rows, inputs):
        choice = plan.losses[role]
        if choice.plugin.load_clipped is None:
            continue
        tokens = inputs.at(chosen)
        who = f"`load_clipped` of loss {choice.plugin.name!r} for role {role!r}"
        with failures_as(LossError, who):
            clipped = choice.plugin.load_clipped()(tokens, choice.params)
        if not isinstance(clipped, Tensor) or clipped.dtype != torch.bool or clipped.shape != tokens.logprobs.shape:
            raise LossError(
                f"{who} did not return one bool per token.", "Return a tensor like inputs.logprobs > bound."
            )
        found[chosen] = clipped.float()
    return found
