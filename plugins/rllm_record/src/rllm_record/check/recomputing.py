"""Compute an optimizer step again from its rows of the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_backend_kit.loss import RoleLosses
from rllm_backend_kit.update_trace import Coefficients, coefficients
from rllm_core.contracts.backend import KlTerm, RolloutCorrection, UpdatePlan
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.loss import LossInput
from rllm_core.plugins import resolve
from rllm_core.updates.aggregation import token_weights

Row = Mapping[str, Any]
"""A row of `TRACES`."""
RECORDED = {
    "old_logprobs": "old_logprob",
    "advantages": "advantage",
    "sampling_logprobs": "rollout_logprob",
    "ref_logprobs": "ref_logprob",
}
"""Column of a `LossInput` -> its name in `TRACES`."""


def plan_of(objective: Mapping[str, Any], step: int) -> UpdatePlan:
    """Return the plan of an update, with the fields that its loss depends on.

    Raises:
        PluginError: one of its losses is not installed.
    """
    losses = {}
    for role, loss in objective["losses"].items():
        registered = resolve("loss", loss["name"])
        losses[role] = PluginChoice(registered=registered, params=registered.plugin.params(**loss["params"]))
    kl, correction = objective["kl"], objective["rollout_correction"]
    return UpdatePlan(
        global_step=step,
        losses=losses,
        aggregation=objective["aggregation"],
        entropy_coeff=objective["entropy_coeff"],
        seed=0,
        kl=None if kl is None else KlTerm(**kl),
        rollout_correction=None if correction is None else RolloutCorrection(**correction),
    )


@dataclass(frozen=True, eq=False)
class OptimizerRows:
    """The rows of one optimizer step, in the order of the batch. Columns are concatenated over the rows."""

    rows: Sequence[Row]

    @property
    def lengths(self) -> list[int]:
        """(n_row,) number of trained tokens of each row."""
        return [len(row["positions"]) for row in self.rows]

    def column(self, name: str) -> NDArray[np.float32] | None:
        """Return a column of the tokens, (n,) float32. None if a row does not have it."""
        values = [row[name] for row in self.rows]
        if any(each is None for each in values):
            return None
        return np.concatenate([np.array(each, np.float32) for each in values])

    def tensor(self, name: str) -> Tensor | None:
        """Return `column` as a torch tensor."""
        values = self.column(name)
        return None if values is None else torch.from_numpy(values)


class _Roles:
    """Role of each row of the batch. Rows that are missing here have the first role."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.roles = tuple(dict.fromkeys(row["role"] for row in rows))
        self.role = np.zeros(max(row["row"] for row in rows) + 1, np.int32)
        for row in rows:
            self.role[row["row"]] = self.roles.index(row["role"])


def recomputed(step: OptimizerRows, plan: UpdatePlan, seed: int, losses: RoleLosses) -> Coefficients | None:
    """Return the loss and the coefficients of an optimizer step. None if a required column is not recorded."""
    logprobs, weights = step.tensor("logprob"), step.tensor("weight")
    if logprobs is None or weights is None or step.column("old_logprob") is None or step.column("advantage") is None:
        return None
    numbers = np.array([row["row"] for row in step.rows], np.int64)
    row_ids = torch.from_numpy(np.repeat(numbers, step.lengths))
    inputs = LossInput.from_columns(logprobs, row_ids, lambda name: step.tensor(RECORDED[name]), seed)
    return coefficients(_Roles(step.rows), inputs, step.tensor("entropy"), weights, plan, losses)


def expected_weights(step: OptimizerRows, objective: Mapping[str, Any]) -> NDArray[np.float32]:
    """Return the (n,) weights of the tokens in the loss, from the aggregation of the run."""
    lengths = np.array(step.lengths, np.int64)
    return token_weights(objective["aggregation"], lengths, objective["max_response_length"])
