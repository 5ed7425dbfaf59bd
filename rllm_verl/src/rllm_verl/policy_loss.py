"""The loss in the workers. It is sent as plain data, resolved by name in the worker, and applied to micro-batches."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_backend_kit.loss import RoleLosses, loss_terms, token_objective
from rllm_backend_kit.named_loss import NamedLoss
from rllm_backend_kit.update_metrics import Means, note_clipping, note_policy, note_rollout
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.loss import LossInput
from rllm_core.errors import LossError, RllmError
from rllm_core.seeding import derive_seed
from rllm_core.updates.losses import importance_ratio

if TYPE_CHECKING:
    from tensordict import TensorDict

SHARES = "observation_shares"
"""Name of the workers' column with the weights of observations, see `rllm_backend_kit.minibatches`. An update
without observations does not have it."""


def observations(model_output: Mapping[str, Tensor], data: TensorDict) -> tuple[Tensor, Tensor]:
    """Return the log-probs of a micro-batch's observation tokens and their shares, (n_observed,) float32 each."""
    shares = data[SHARES].values()
    places = shares.nonzero()[:, 0]
    # An engine's value at a position belongs to the next token.
    return model_output["log_probs"].values()[places - 1].float(), shares[places]


@dataclass(frozen=True, eq=False)
class SampledTokens:
    """A micro-batch's sampled tokens, row after row. Tensors are (n_sampled,)."""

    data: TensorDict
    """The micro-batch, see ``rllm_verl.rows.ShardedRows.tensordict``."""
    places: Tensor
    """Indices of the sampled tokens among the micro-batch's tokens, int64."""
    row_ids: Tensor
    """Each token's row in the batch, int64."""
    roles: Tensor
    """Index of each token's role, int64."""
    logprobs: Tensor
    """Log-probs of the tokens, float32."""
    entropy: Tensor | None
    """Entropy of each token's sampling distribution, float32. None if the engine did not compute it."""

    @classmethod
    def from_model_output(cls, model_output: Mapping[str, Tensor], data: TensorDict) -> SampledTokens:
        places = data["loss_mask"].values().nonzero()[:, 0]
        lengths = data["input_ids"].offsets().diff()
        entropy = model_output.get("entropy")
        return cls(
            data=data,
            places=places,
            row_ids=data["row"].repeat_interleave(lengths)[places],
            roles=data["role"].repeat_interleave(lengths)[places],
            # An engine's value at a position belongs to the next token.
            logprobs=model_output["log_probs"].values()[places - 1].float(),
            entropy=None if entropy is None else entropy.values()[places - 1].float(),
        )

    def __len__(self) -> int:
        return len(self.places)

    def column(self, name: str) -> Tensor:
        """Return a column of the batch for the sampled tokens, float32."""
        column: Tensor = self.data[name].values()[self.places]
        return column

    def loss_input(self, seed: int) -> LossInput:
        return LossInput.from_columns(
            self.logprobs, self.row_ids, lambda name: self.column(name) if name in self.data else None, seed
        )

    def entropies(self, inputs: LossInput) -> Tensor:
        """Return the entropies in nats, float32. If the engine did not compute them, estimate them from log-probs.

        The estimate is -rho logprob, without gradient. Its mean over samples of the old policy is the entropy.
        """
        if self.entropy is not None:
            return self.entropy
        with torch.no_grad():
            return -importance_ratio(inputs) * inputs.logprobs


@dataclass(frozen=True, eq=False)
class TracedTokens:
    """A micro-batch's sampled tokens, row after row."""

    rows: NDArray[np.int64]
    """Row ids in the batch, (n_row,)."""
    logprobs: NDArray[np.float32]
    """Log-probs, (n_sampled,)."""
    entropies: NDArray[np.float32] | None
    """Entropies, (n_sampled,). None if the engine did not compute them."""

    @classmethod
    def from_tokens(cls, tokens: SampledTokens) -> TracedTokens:
        return cls(
            rows=torch.unique_consecutive(tokens.row_ids).cpu().numpy(),
            logprobs=tokens.logprobs.detach().float().cpu().numpy(),
            entropies=None if tokens.entropy is None else tokens.entropy.detach().float().cpu().numpy(),
        )


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


NOTES = "rllm"
"""Name of the verl metric that contains each micro-batch's notes."""


@dataclass(frozen=True)
class Failure:
    """A loss's error as data. If a worker raised it, the other ranks would wait for this rank indefinitely."""

    code: str
    message: str
    hint: str
    traceback: str

    @classmethod
    def from_error(cls, error: RllmError) -> Failure:
        return cls(error.code, error.message, error.hint, "".join(traceback.format_exception(error)))

    def error(self) -> LossError:
        """Return the error that the driver raises."""
        error = LossError(self.code, self.message, self.hint)
        error.add_note(f"In a worker:\n{self.traceback}")
        return error


@dataclass(frozen=True)
class Notes:
    """A micro-batch's results for the driver, in addition to its loss."""

    means: Means
    failure: Failure | None = None
    traced: TracedTokens | None = None
    """The traced tokens. None if the plan requests no trace."""
    prediction: float = 0.0
    """The share of the observations in the batch's loss."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SerializedLoss:
    """One update's loss as a callable for verl's engines. It can be pickled with any plugin."""

    roles: tuple[str, ...]
    losses: Mapping[str, NamedLoss]
    """The loss for each role."""
    plan: UpdatePlan
    """The update plan without its losses."""

    @classmethod
    def from_plan(cls, roles: tuple[str, ...], plan: UpdatePlan) -> SerializedLoss:
        losses = {role: NamedLoss.from_choice(plan.losses[role]) for role in roles}
        return cls(roles=roles, losses=losses, plan=replace(plan, losses={}))

    def __getstate__(self) -> dict[str, Any]:
        # Send only the fields, not the losses that this process has resolved.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __call__(
        self, model_output: dict[str, Tensor], data: TensorDict, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return a micro-batch's share of the loss, and its notes under `NOTES`.

        Args:
            model_output: nested ``log_probs`` and optionally ``entropy``. It is cleared, because verl stores its
                contents until the last micro-batch and sends them to the driver.
            data: see ``rllm_verl.rows.ShardedRows.tensordict``.
            dp_group: not used, because the loss does not depend on other ranks.
        """
        tokens, means = SampledTokens.from_model_output(model_output, data), Means()
        # Ranks wait for each other in the backward pass, so rows without a sampled token also need a backward pass.
        nothing = model_output["log_probs"].values()[:0].sum()
        observed = observations(model_output, data) if SHARES in data else None
        model_output.clear()
        try:
            loss = self._loss(tokens, means) if len(tokens) else nothing
            traced = TracedTokens.from_tokens(tokens) if self.plan.trace and len(tokens) else None
            if observed is None:
                return loss, {NOTES: Notes(means, traced=traced)}
            logprobs, shares = observed
            means.add("actor/observation_loss", -logprobs.detach())
            prediction = -(logprobs * shares).sum()
            # FSDP averages the ranks' gradients.
            loss = loss + prediction * data["dp_size"]
            return loss, {NOTES: Notes(means, traced=traced, prediction=float(prediction.detach()))}
        except RllmError as error:
            return nothing, {NOTES: Notes(means, Failure.from_error(error))}
        except Exception as error:  # noqa: BLE001  (if a rank raised, the others would wait for it)
            failed = LossError(
                "plugin-failed",
                f"A loss cannot be computed: {type(error).__name__}: {error}.",
                "Add --debug to see the traceback.",
            )
            failed.__cause__ = error
            return nothing, {NOTES: Notes(means, Failure.from_error(failed))}

    @cached_property
    def _resolved_plan(self) -> UpdatePlan:
        return replace(self.plan, losses={role: loss.resolve() for role, loss in self.losses.items()})

    @cached_property
    def _role_losses(self) -> RoleLosses:
        return RoleLosses()

    def _loss(self, tokens: SampledTokens, means: Means) -> Tensor:
        plan, number = self._resolved_plan, tokens.data["minibatch"]
        inputs = tokens.loss_input(derive_seed(plan.seed, "loss", number))
        rows = _RowRoles.from_tokens(self.roles, tokens)
        entropies = tokens.entropies(inputs)
        terms = loss_terms(inputs, plan)
        objective = token_objective(self._role_losses(rows, inputs, plan), terms, entropies, plan)
        # FSDP averages the ranks' gradients.
        loss: Tensor = (objective * tokens.column("weights")).sum() * tokens.data["dp_size"]
        note_policy(means, inputs, terms, entropies)
        note_clipping(means, rows, inputs, plan)
        if number == 0:
            note_rollout(means, inputs)
        return loss
