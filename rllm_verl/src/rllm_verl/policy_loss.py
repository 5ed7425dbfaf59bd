"""The loss in the workers. It is sent as plain data, resolved by name in the worker, and applied to micro-batches."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rllm_backend_kit.loss import loss_terms, token_objective
from rllm_backend_kit.named_loss import NamedLoss
from rllm_backend_kit.update_metrics import Means, note_policy, note_rollout
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.errors import LossError, RllmError
from rllm_core.seeding import derive_seed
from rllm_verl.tokens import SHARES, SampledTokens, observations
from rllm_verl.traced import TracedTokens
from rllm_verl.worker_losses import WorkerLosses

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

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
class ShippedLoss:
    """One update's loss as a callable for verl's engines. It can be pickled with any plugin."""

    roles: tuple[str, ...]
    losses: Mapping[str, NamedLoss]
    """The loss for each role."""
    plan: UpdatePlan
    """The update plan without its losses."""

    @classmethod
    def from_plan(cls, roles: tuple[str, ...], plan: UpdatePlan) -> ShippedLoss:
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
            data: see ``rllm_verl.rows.DealtRows.tensordict``.
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
    def _worker_losses(self) -> WorkerLosses:
        return WorkerLosses(self.roles, self.losses, self.plan)

    def _loss(self, tokens: SampledTokens, means: Means) -> Tensor:
        losses, number = self._worker_losses, tokens.data["minibatch"]
        inputs = tokens.loss_input(derive_seed(self.plan.seed, "loss", number))
        entropies = tokens.entropies(inputs)
        terms = loss_terms(inputs, self.plan)
        objective = token_objective(losses.per_token(tokens, inputs), terms, entropies, self.plan)
        # FSDP averages the ranks' gradients.
        loss: Tensor = (objective * tokens.column("weights")).sum() * tokens.data["dp_size"]
        note_policy(means, inputs, terms, entropies)
        losses.note_clipping(tokens, inputs, means)
        if number == 0:
            note_rollout(means, inputs)
        return loss
