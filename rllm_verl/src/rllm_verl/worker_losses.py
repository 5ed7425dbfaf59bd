"""In a worker: the losses of an update, resolved by name from what is installed there, each for its role's tokens."""

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
"""Shares of tokens that verl's losses clip, at one side and at the other; no token is in both."""


class WorkerLosses:
    """Ours give a number per token, verl's own a share of the loss of the minibatch."""

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
        """(n_sampled,) what our losses say of the tokens of their roles, 0 at those of verl's.

        Raises:
            LossError: a loss failed, or returned something else than one finite number per token.
        """
        rows = _RowRoles.of(self._roles, tokens)
        if not self._of_verl:
            return self._role_losses(rows, inputs, self.plan)
        ours = ~torch.isin(tokens.roles, torch.tensor(list(self._of_verl), device=tokens.roles.device))
        losses = torch.zeros_like(inputs.logprobs)
        if not ours.any():
            return losses
        return losses.masked_scatter(ours, self._role_losses(rows, inputs.at(ours), self.plan))

    def note_clipping(self, tokens: SampledTokens, inputs: LossInput, means: Means) -> None:
        """Note the share of tokens that our losses clip; verl's say theirs in `of_verl`."""
        note_clipping(means, _RowRoles.of(self._roles, tokens), inputs, self.plan)

    def of_verl(self, tokens: SampledTokens, terms: LossTerms, aggregation: Aggregation, means: Means) -> Tensor | None:
        """() what verl's losses add to the loss, scaled by the number of ranks; None where no role has one.

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
            except Exception as error:  # whatever it is: its name and role are not in it
                hint = "Look at its options; add --debug to see where it failed."
                raise LossError("plugin-failed", f"{who} failed: {type(error).__name__}: {error}.", hint) from error
            if not torch.isfinite(share):
                raise LossError(
                    "loss-not-finite",
                    f"{who} is NaN or infinite.",
                    "Look at actor/ratio_mean and the advantages of the steps before.",
                )
            shares.append(share)
            if CLIPPED[0] in noted:
                noted["actor/clip_fraction"] = sum(noted.get(name, 0.0) for name in CLIPPED)
            for name, value in noted.items():
                means.add(name, torch.full((int(chosen.sum()),), value))
        return torch.stack(shares).sum() if shares else None


@dataclass(frozen=True, eq=False)
class _RowRoles:
    """What `RoleLosses` asks of a batch, for the rows of a micro-batch."""

    roles: tuple[str, ...]
    role: NDArray[np.int32]

    @classmethod
    def of(cls, roles: tuple[str, ...], tokens: SampledTokens) -> _RowRoles:
        rows = tokens.row_ids.cpu().numpy()
        role = np.zeros(rows.max() + 1, np.int32)
        role[rows] = tokens.roles.cpu().numpy()
        return cls(roles, role)
