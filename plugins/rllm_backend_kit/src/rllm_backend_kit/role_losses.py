"""Policy losses by role."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.loss import LossInput
from rllm_core.errors import LossError, failures_as
from rllm_core.updates.losses import checked


class RowRoles(Protocol):
    """The part of a TokenBatch that says which role each row is of."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Names."""

    @property
    def role(self) -> NDArray[np.int32]:
        """(n_row,) index of each row's role, by row id."""


class RoleLosses:
    """Sends each role's tokens through that role's loss, which is loaded when it is first needed."""

    def __call__(self, batch: RowRoles, inputs: LossInput, plan: UpdatePlan) -> Tensor:
        """(n_sampled,) loss of each token.

        Raises:
            LossError: a loss returned something else than one finite number per token.
        """
        if len(batch.roles) == 1:
            return self._apply(batch.roles[0], inputs, plan)
        losses = torch.zeros_like(inputs.logprobs)
        for role, chosen in places_by_role(batch, inputs):
            losses = losses.masked_scatter(chosen, self._apply(role, inputs.at(chosen), plan))
        return losses

    def _apply(self, role: str, inputs: LossInput, plan: UpdatePlan) -> Tensor:
        choice = plan.losses[role]
        function = choice.registered.load()
        who = f"loss {choice.plugin.name!r} for role {role!r}"
        with failures_as(LossError, who):
            losses = function(inputs, choice.params)
        return checked(losses, inputs, who)


def places_by_role(rows: RowRoles, inputs: LossInput) -> Iterator[tuple[str, Tensor]]:
    """(n_sampled,) bool, where the tokens of each role are; roles without a token are left out."""
    roles = torch.from_numpy(rows.role).to(inputs.row_ids.device)[inputs.row_ids]
    for index, role in enumerate(rows.roles):
        chosen = roles == index
        if chosen.any():
            yield role, chosen
