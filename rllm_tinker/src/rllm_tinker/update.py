"""One policy update: the gradient of each minibatch's loss, and an optimizer step for each minibatch.

The service computes its own losses. `dro` needs a forward pass first, because its quadratic term includes every
position of a row. rllm computes all other losses from the log-probs that the service returns.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import Task
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_backend_kit.learning_rate import learning_rate
from rllm_backend_kit.loss import RoleLosses, complete_plan, loss_terms, sampled_entropy, token_objective
from rllm_backend_kit.minibatches import minibatch_weights, minibatches, observation_shares
from rllm_backend_kit.overflow import gradient_error, overflow_cause
from rllm_backend_kit.update_metrics import Means, note_clipping, note_policy, note_rollout
from rllm_backend_kit.update_trace import UpdateTrace
from rllm_core.contracts.backend import UpdatePlan, UpdateResult
from rllm_core.contracts.loss import LossInput
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import BackendError
from rllm_core.seeding import derive_seed
from rllm_tinker.client import PendingResult, Trainer
from rllm_tinker.datums import NativeLoss, Rows, columns_of, native_loss
from rllm_tinker.exchange import Adam, Gradient
from rllm_tinker.settings import TrainingSection


def custom_loss(
    rows: Rows, weights: NDArray[np.float32], plan: UpdatePlan, role_losses: RoleLosses, seed: int
) -> Callable[[Sequence[Tensor]], Tensor]:
    """Return the rows' loss as a function of their targets' log-probs, a tensor (n_target,) for each row.

    Args:
        rows: whole rows of a batch with `advantages` and `old_logprobs`.
        weights: (n_token of the batch,) weight of each sampled token.
        plan: losses and loss terms.
        role_losses: computes the policy losses.
        seed: seed for losses that use random numbers.
    """
    shares = torch.from_numpy(weights[rows.sampled_indices])
    masks = [torch.from_numpy(rows.batch.loss_mask[start:end]) for start, end in rows.spans]

    def loss(logprobs: Sequence[Tensor]) -> Tensor:
        sampled = torch.cat([row[mask] for row, mask in zip(logprobs, masks, strict=True)])
        inputs = loss_input(rows, sampled, seed)
        policy_losses = role_losses(rows.batch, inputs, plan)
        objective = token_objective(policy_losses, loss_terms(inputs, plan), sampled_entropy(inputs), plan)
        return (objective * shares).sum()

    return loss


def loss_input(rows: Rows, logprobs: Tensor, seed: int) -> LossInput:
    """Return the loss input for the rows' sampled tokens. `logprobs` are their log-probs, (n_sampled,)."""
    lengths = [int(rows.batch.loss_mask[start:end].sum()) for start, end in rows.spans]
    row_ids = torch.from_numpy(np.repeat(np.array(rows.rows, np.int64), lengths))
    return LossInput.from_batch(rows.batch, rows.sampled_indices, logprobs, row_ids, seed)


def observed_rows(batch: TokenBatch, chosen: NDArray[np.int64]) -> tuple[Rows, NDArray[np.float32]] | None:
    """Return rows that count observations as sampled, and the observations' shares, (n_token of the batch,).

    The shares are the weights of the service's `cross_entropy`. None without observations.
    """
    shares = observation_shares(batch, chosen)
    if shares is None or not shares.any():
        return None
    return Rows.from_batch(replace(batch, loss_mask=shares > 0), chosen), shares


def uniform_weight(rows: Rows, weights: NDArray[np.float32]) -> float | None:
    """Return the common weight of the rows' sampled tokens. None if weights differ, which `dro` cannot express."""
    found = weights[rows.sampled_indices]
    return float(found[0]) if len(found) and np.all(found == found[0]) else None


async def submit_dro(
    trainer: Trainer, rows: Rows, loss: NativeLoss, weight: float, columns: Mapping[str, NDArray[np.float32]]
) -> PendingResult[Gradient]:
    """Request the gradient of `dro` after a forward pass for the prompts' log-probs. Await the returned coroutine too.

    The loss is A logprob - beta / 2 (logprob - old)^2 per token. `columns` already contain weight * A. The weight of
    the quadratic term is applied to beta.
    """
    forward = await trainer.forward(rows.datums(weights=np.zeros_like(columns["logprobs"])))
    old_logprobs = np.where(rows.batch.loss_mask, columns["logprobs"], rows.column(forward.logprobs))
    config = {"beta": loss.config["beta"] * weight}
    return trainer.forward_backward(rows.datums(**{**columns, "logprobs": old_logprobs}), loss.name, config)


@dataclass(frozen=True, eq=False)
class _Minibatch:
    """The requests of one minibatch."""

    number: int
    seed: int
    weights: NDArray[np.float32]
    """(n_token of the batch,) weight of each sampled token."""
    parts: list[tuple[Rows, Task[Gradient]]]
    prediction: tuple[Rows, Task[Gradient]] | None
    """Rows with observations, and the gradient of their prediction."""
    step: Task[dict[str, float]] | None
    """The optimizer step, if it was requested together with the gradient."""


class Updater:
    """Converts a batch and a plan to requests. All random numbers come from `UpdatePlan.seed`."""

    def __init__(self, settings: TrainingSection, *, total_steps: int, max_response_length: int, fused: bool) -> None:
        self._settings = settings
        self._total_steps = total_steps
        self._max_response_length = max_response_length
        self._fused = fused
        self._role_losses = RoleLosses()

    async def update(self, trainer: Trainer, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        """Make one training step's update. Metrics are means over its sampled tokens or optimizer steps."""
        settings = self._settings
        plan = complete_plan(batch, plan)
        rate = learning_rate(settings, plan.global_step, self._total_steps)
        adam = Adam(
            learning_rate=rate,
            beta1=settings.beta1,
            beta2=settings.beta2,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            grad_clip_norm=settings.max_grad_norm,
        )
        means = Means()
        per_epoch = min(settings.num_minibatches, batch.n_rows)
        trace = UpdateTrace(batch, plan, self._role_losses, per_epoch) if plan.trace else None
        all_chosen = minibatches(batch.n_rows, settings.num_minibatches, settings.num_epochs, plan.seed)
        steps: list[Task[dict[str, float]] | None] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                done: _Minibatch | None = None
                for number, chosen in enumerate(all_chosen):
                    sent = await self._send(tasks, trainer, batch, chosen, plan, adam, number)
                    # The service computes this minibatch meanwhile.
                    if done is not None:
                        self._note(done, means, plan, adam, trace)
                    steps.append(await self._step(tasks, trainer, sent, plan, adam))
                    done = sent
                if done is not None:
                    self._note(done, means, plan, adam, trace)
        except BaseExceptionGroup as several:
            # The task group has cancelled the other requests.
            error = several.exceptions[0]
            if "not finite" in str(error) and overflow_cause(batch) is not None:
                raise gradient_error(batch, plan.global_step, "") from error
            raise error from None
        for number, step in enumerate(steps):
            step_metrics = {} if step is None else step.result()
            _note_step(means, step_metrics)
            if trace is not None:
                _trace_norm(trace, number, step_metrics, settings.max_grad_norm)
        metrics = {"actor/lr": rate} | means.metrics()
        return UpdateResult(metrics=metrics, made_with=plan) if trace is None else trace.result(metrics)

    async def _send(
        self,
        tasks: asyncio.TaskGroup,
        trainer: Trainer,
        batch: TokenBatch,
        chosen_rows: NDArray[np.int64],
        plan: UpdatePlan,
        adam: Adam,
        number: int,
    ) -> _Minibatch:
        """Request a minibatch's gradient, and with `fuse_forward_backward_and_optim_step` its optimizer step."""
        rows, observed = Rows.from_batch(batch, chosen_rows), observed_rows(batch, chosen_rows)
        chosen = np.array(rows.rows, np.int64)
        weights = minibatch_weights(rows.batch, chosen, plan.aggregation, self._max_response_length)
        seed = derive_seed(plan.seed, "loss", number)
        parts = await self._submit(tasks, trainer, rows, weights, plan, seed)
        prediction = None
        if observed is not None:
            # Another request leaves the policy's requests unchanged. The service adds the gradients.
            datums = observed[0].datums(weights=observed[1])
            task = tasks.create_task(trainer.forward_backward(datums, "cross_entropy", {}))
            prediction = observed[0], task
        is_empty = not parts and prediction is None
        step = tasks.create_task(trainer.optim_step(adam)) if self._fused and not is_empty else None
        return _Minibatch(number, seed, weights, parts, prediction, step)

    async def _step(
        self, tasks: asyncio.TaskGroup, trainer: Trainer, sent: _Minibatch, plan: UpdatePlan, adam: Adam
    ) -> Task[dict[str, float]] | None:
        """Wait for a minibatch's gradient, and return the optimizer step's task without waiting for it.

        The service executes requests in the order in which they are sent, so rllm need not wait for the step. None if
        the rows contain nothing to train on.
        """
        if not sent.parts and sent.prediction is None:
            return None
        _check_finite(sum([(await task).loss for _, task in sent.parts]), plan)
        if sent.prediction is not None:
            _check_finite((await sent.prediction[1]).loss, plan)
        return tasks.create_task(trainer.optim_step(adam)) if sent.step is None else sent.step

    def _note(self, sent: _Minibatch, means: Means, plan: UpdatePlan, adam: Adam, trace: UpdateTrace | None) -> None:
        """Record the metrics of a minibatch whose gradient has been returned."""
        if not sent.parts and sent.prediction is None:
            return
        gradients = [task.result() for _, task in sent.parts]
        loss = sum(gradient.loss for gradient in gradients)
        means.add("actor/loss", loss)
        if sent.prediction is not None:
            observed, prediction = sent.prediction
            logprobs = observed.column(prediction.result().logprobs)[observed.sampled_indices]
            means.add("actor/observation_loss", -torch.from_numpy(logprobs))
        for (part, _), gradient in zip(sent.parts, gradients, strict=True):
            inputs = _inputs_of(part, gradient, sent.seed)
            _note_tokens(means, part, inputs, plan, before_any_step=sent.number == 0)
            if trace is not None:
                sampled = part.sampled_indices
                trace.add(sent.number, sampled, inputs, None, torch.from_numpy(sent.weights[sampled]))
        if trace is not None:
            trace.end_step(
                sent.number,
                loss if all(_is_sum_of_tokens(plan, part) for part, _ in sent.parts) else None,
                loss_seed=sent.seed,
                learning_rate=adam.learning_rate,
            )

    async def _submit(
        self,
        tasks: asyncio.TaskGroup,
        trainer: Trainer,
        rows: Rows,
        weights: NDArray[np.float32],
        plan: UpdatePlan,
        seed: int,
    ) -> list[tuple[Rows, Task[Gradient]]]:
        """Request the gradients of all roles. The service adds them up."""
        submitted: list[tuple[Rows, Task[Gradient]]] = []
        computed_here: list[int] = []
        corrected = weights * _rollout_weights(rows, plan)
        for role, part in rows.by_role():
            native = native_loss(plan.losses[role])
            if native is None or plan.kl is not None or plan.entropy_coeff:
                computed_here += part.rows
            elif (gradient := await self._native(trainer, part, native, corrected, plan)) is not None:
                submitted.append((part, tasks.create_task(gradient)))
            else:
                computed_here += part.rows
        if computed_here:
            part = Rows.from_batch(rows.batch, computed_here)
            loss = custom_loss(part, weights, plan, self._role_losses, seed)
            gradient = trainer.forward_backward_custom(part.datums(), loss)
            submitted.append((part, tasks.create_task(gradient)))
        return submitted

    async def _native(
        self, trainer: Trainer, rows: Rows, loss: NativeLoss, weights: NDArray[np.float32], plan: UpdatePlan
    ) -> PendingResult[Gradient] | None:
        batch = rows.batch
        assert batch.advantages is not None
        assert batch.old_logprobs is not None
        columns = columns_of(loss, batch.advantages, batch.old_logprobs, batch.loss_mask, weights)
        if loss.name != "dro":
            return trainer.forward_backward(rows.datums(**columns), loss.name, loss.config)
        weight = uniform_weight(rows, weights)
        return None if weight is None else await submit_dro(trainer, rows, loss, weight, columns)


def _inputs_of(rows: Rows, gradient: Gradient, seed: int) -> LossInput:
    """Return the loss input for the rows' sampled tokens, with the log-probs that the service returned."""
    return loss_input(rows, torch.from_numpy(rows.column(gradient.logprobs)[rows.sampled_indices]), seed)


def _is_sum_of_tokens(plan: UpdatePlan, rows: Rows) -> bool:
    """Return True if the service's loss is the sum of the tokens' losses. Its `dro` adds constants."""
    roles = {rows.batch.roles[rows.batch.role[row]] for row in rows.rows}
    return not any((native := native_loss(plan.losses[role])) and native.name == "dro" for role in roles)


def _trace_norm(trace: UpdateTrace, number: int, step_metrics: Mapping[str, float], limit: float) -> None:
    """Record the gradient norm if the service reports it. A limit of 0 disables clipping."""
    norms = [float(value) for name, value in step_metrics.items() if name.partition(":")[0] == "grad_norm"]
    if norms:
        (norm,) = norms
        trace.note_norm(number, norm, min(1.0, limit / norm) if limit and norm else 1.0)


def _note_tokens(means: Means, rows: Rows, inputs: LossInput, plan: UpdatePlan, *, before_any_step: bool) -> None:
    """Record the metrics of the rows' sampled tokens."""
    note_policy(means, inputs, loss_terms(inputs, plan), sampled_entropy(inputs))
    note_clipping(means, rows.batch, inputs, plan)
    if before_any_step:
        note_rollout(means, inputs)


def _note_step(means: Means, step_metrics: Mapping[str, float]) -> None:
    """Record the service's metrics of an optimizer step, such as ``grad_norm``, without suffixes such as ``:mean``."""
    for name, value in step_metrics.items():
        means.add(f"actor/{name.partition(':')[0]}", float(value))


def _check_finite(loss: float, plan: UpdatePlan) -> None:
    if math.isfinite(loss):
        return
    raise BackendError(
        "loss-not-finite",
        f"The loss of step {plan.global_step} is not finite.",
        "Check actor/ratio_mean of the previous steps, lower training.learning_rate, then run the command with "
        "--resume to continue from the newest checkpoint.",
    )


def _rollout_weights(rows: Rows, plan: UpdatePlan) -> NDArray[np.float32]:
    """Return each token's policy loss weight by rollout correction, (n_token of the batch,). 1 without correction."""
    weights = np.ones(len(rows.batch.tokens), np.float32)
    if plan.rollout_correction is None:
        return weights
    sampled = rows.sampled_indices
    inputs = loss_input(rows, torch.zeros(len(sampled)), 0)
    found = loss_terms(inputs, replace(plan, kl=None)).weights
    assert found is not None
    weights[sampled] = found.numpy()
    return weights
