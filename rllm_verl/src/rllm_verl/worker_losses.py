"""Worker code for an update's losses. It resolves them by name, and applies each loss to its role's tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_backend_kit.loss import RoleLosses
from rllm_backend_kit.named_loss import NamedLoss
from rllm_backend_kit.update_metrics import note_clipping
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.errors import LossError
from rllm_verl.tokens import SampledTokens
from rllm_verl.verl_losses import actor_fields
from rllm_verl.verl_policy_loss import Aggregation, VerlPolicyLoss

if TYPE_CHECKING:
    from rllm_backend_kit.loss import LossTerms
    from rllm_backend_kit.update_metrics import Means
    from rllm_core.contracts.loss import LossInput

CLIPPED = ("actor/pg_clipfrac", "actor/pg_clipfrac_lower")
"""verl's metrics for the fraction of tokens that are clipped at the upper and lower side. No token is in both."""


class WorkerLosses:
    """An update's losses. rllm's losses return one number per token, verl's own a share of the minibatch's loss."""

    def __init__(self, roles: tuple[str, ...], losses: Mapping[str, NamedLoss], plan: UpdatePlan) -> None:
        choices = {role: loss.resolve() for role, loss in losses.items()}
        self.plan = replace(plan, losses=choices)
        self._roles = roles
        self._role_losses = RoleLosses()
        self._of_verl: dict[int, tuple[VerlPolicyLoss, Mapping[str, Any]]] = {}
        for role, choice in choices.items():
            loss = choice.plugin.load()
            if isinstance(loss, VerlPolicyLoss):
                self._of_verl[roles.index(role)] = loss, actor_fields(choice.params)

    def per_token(self, tokens: SampledTokens, inputs: LossInput) -> Tensor:
        """Return the values of rllm's losses, (n_sampled,). Tokens of roles with verl's losses get 0.

        Raises:
            LossError: a loss failed, or did not return one finite number per token.
        """
        rows = _RowRoles.from_tokens(self._roles, tokens)
        if not self._of_verl:
            return self._role_losses(rows, inputs, self.plan)
        ours = ~torch.isin(tokens.roles, torch.tensor(list(self._of_verl), device=tokens.roles.device))
        losses = torch.zeros_like(inputs.logprobs)
        if not ours.any():
            return losses
        return losses.masked_scatter(ours, self._role_losses(rows, inputs.at(ours), self.plan))

    def note_clipping(self, tokens: SampledTokens, inputs: LossInput, means: Means) -> None:
        """Record the fraction of tokens that rllm's losses clip. `of_verl` records it for verl's losses."""
        note_clipping(means, _RowRoles.from_tokens(self._roles, tokens), inputs, self.plan)

    def of_verl(self, tokens: SampledTokens, terms: LossTerms, aggregation: Aggregation, means: Means) -> Tensor | None:
        """Return verl's losses (), multiplied by the number of ranks. None if no role uses a verl loss.

        Raises:
            LossError: a loss failed or is not finite.
        """
        shares = []
        for index, (loss, options) in self._of_verl.items():
            chosen = tokens.roles == index
            if not chosen.any():
                continue
            who = f"verl's loss {loss.name!r} for role {self._roles[index]!r}"
            try:
                share, noted = loss.share(tokens, chosen, options, terms.weights, aggregation)
            except Exception as error:  # add the loss's name and role, which no exception from verl contains
                hint = "Check the loss's options. Add --debug to see the traceback."
                raise LossError("plugin-failed", f"{who} failed: {type(error).__name__}: {error}.", hint) from error
            if not torch.isfinite(share):
                raise LossError(
                    "loss-not-finite",
                    f"{who} is NaN or infinite.",
                    "Check actor/ratio_mean and the advantages of the previous steps.",
                )
            shares.append(share)
            if CLIPPED[0] in noted:
                noted["actor/clip_fraction"] = sum(noted.get(name, 0.0) for name in CLIPPED)
            for name, value in noted.items():
                means.add(name, torch.full((int(chosen.sum()),), value))
        return torch.stack(shares).sum() if shares else None


@dataclass(frozen=True, eq=False)
class _RowRoles:
    """The attributes of a batch that `RoleLosses` reads, for a micro-batch's rows."""

    roles: tuple[str, ...]
    role: NDArray[np.int32]

    @classmethod
    def from_tokens(cls, roles: tuple[str, ...], tokens: SampledTokens) -> _RowRoles:
        rows = tokens.row_ids.cpu().numpy()
        role = np.zeros(rows.max() + 1, np.int32)
        role[rows] = tokens.roles.cpu().numpy()
        return cls(roles, role)
