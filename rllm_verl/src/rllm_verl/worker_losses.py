"""Worker code for an update's losses. It resolves them by name, and applies each loss to its role's tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rllm_backend_kit.loss import RoleLosses
from rllm_backend_kit.named_loss import NamedLoss
from rllm_backend_kit.update_metrics import note_clipping
from rllm_core.contracts.backend import UpdatePlan
from rllm_verl.tokens import SampledTokens

if TYPE_CHECKING:
    from rllm_backend_kit.update_metrics import Means
    from rllm_core.contracts.loss import LossInput


class WorkerLosses:
    """An update's losses, one for each role."""

    def __init__(self, roles: tuple[str, ...], losses: Mapping[str, NamedLoss], plan: UpdatePlan) -> None:
        self._plan = replace(plan, losses={role: loss.resolve() for role, loss in losses.items()})
        self._roles = roles
        self._role_losses = RoleLosses()

    def per_token(self, tokens: SampledTokens, inputs: LossInput) -> Tensor:
        """Return the loss of each token, (n_sampled,).

        Raises:
            LossError: a loss failed, or did not return one finite number per token.
        """
        return self._role_losses(_RowRoles.from_tokens(self._roles, tokens), inputs, self._plan)

    def note_clipping(self, tokens: SampledTokens, inputs: LossInput, means: Means) -> None:
        """Record the fraction of tokens that the losses clip."""
        note_clipping(means, _RowRoles.from_tokens(self._roles, tokens), inputs, self._plan)


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
