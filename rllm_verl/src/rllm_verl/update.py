"""One policy update: the workers compute each minibatch's gradient and make an optimizer step for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from rllm_backend_kit.learning_rate import learning_rate
from rllm_backend_kit.loss import RoleLosses, complete_plan
from rllm_backend_kit.minibatches import minibatch_weights, minibatches, observation_shares
from rllm_backend_kit.overflow import gradient_error
from rllm_backend_kit.update_metrics import Means
from rllm_backend_kit.update_trace import UpdateTrace, clip_factor
from rllm_core.contracts.backend import UpdatePlan, UpdateResult
from rllm_core.contracts.loss import LossInput
from rllm_core.data.batch import TokenBatch
from rllm_core.seeding import derive_seed
from rllm_verl.policy_loss import NOTES, SHARES, Notes, SerializedLoss, TracedTokens
from rllm_verl.rows import MicroBatching, ShardedRows, Workers


@dataclass(frozen=True, kw_only=True)
class UpdateSettings:
    """A run's settings for updates. The workers have clipping and the other options of the optimizer."""

    learning_rate: float
    """Learning rate after warm-up."""
    lr_schedule: Literal["constant", "linear", "cosine"]
    warmup_steps_ratio: float
    """Fraction of the run in which the learning rate rises, in [0, 1]."""
    num_epochs: int
    """Passes over a step's batch."""
    num_minibatches: int
    """Optimizer steps per pass."""
    temperature: float
    """Sampling temperature."""
    micro_batching: MicroBatching
    max_grad_norm: float | None = None
    """The workers' maximum gradient norm for clipping. None if unknown."""
    use_kl_loss: bool = True
    """True if the plan's KL divergence is a term of the loss."""
    calculate_entropy: bool
    """True to compute entropies from the whole distribution even without an entropy bonus. This needs memory for one
    value per vocabulary entry and token. If False, ``actor/entropy`` is estimated from the sampled tokens'
    log-probs."""


class Updater:
    """Converts a batch and a plan to calls of the workers. All random numbers come from `UpdatePlan.seed`."""

    def __init__(self, settings: UpdateSettings, *, total_steps: int, max_response_length: int) -> None:
        self._settings = settings
        self._total_steps = total_steps
        self._max_response_length = max_response_length

    def update(self, workers: Workers, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        """Make one training step's update. Metrics are means over its sampled tokens or optimizer steps.

        Raises:
            LossError: a loss failed in a worker, or did not return one finite number per token.
            BackendError: a gradient is not finite.
        """
        settings = self._settings
        if not settings.use_kl_loss:
            plan = replace(plan, kl=None)
        plan = complete_plan(batch, plan)
        rate = learning_rate(settings, plan.global_step, self._total_steps)
        means = Means()
        per_epoch = min(settings.num_minibatches, batch.n_rows)
        trace = UpdateTrace(batch, plan, RoleLosses(), per_epoch) if plan.trace else None
        traced = None if trace is None else DriverTrace(trace, batch)
        workers.set_loss_fn(SerializedLoss.from_plan(batch.roles, plan))
        # Clear gradients of a failed update. After a normal update, `optimizer_step` has already cleared them.
        workers.optimizer_zero_grad()
        all_chosen = minibatches(batch.n_rows, settings.num_minibatches, settings.num_epochs, plan.seed)
        for number, chosen in enumerate(all_chosen):
            shares = _observation_shares(batch, chosen)
            trained = None if shares is None else batch.loss_mask | (shares > 0)
            rows = ShardedRows.from_batch(batch, chosen, workers.data_parallel_size, settings.micro_batching, trained)
            if len(rows):
                columns = {} if shares is None else {SHARES: shares}
                loss = self._add_gradient(workers, rows, chosen, columns, plan, number, means, traced)
                norm = self._step(workers, rate, batch, plan, means)
                if trace is not None:
                    seed = derive_seed(plan.seed, "loss", number)
                    trace.end_step(number, loss, loss_seed=seed, learning_rate=rate)
                    trace.note_norm(number, norm, clip_factor(norm, settings.max_grad_norm))
        metrics = {"actor/lr": rate} | means.metrics()
        return UpdateResult(metrics=metrics, made_with=plan) if trace is None else trace.result(metrics)

    def _add_gradient(
        self,
        workers: Workers,
        rows: ShardedRows,
        chosen: NDArray[np.int64],
        columns: Mapping[str, NDArray[np.float32]],
        plan: UpdatePlan,
        number: int,
        means: Means,
        traced: DriverTrace | None,
    ) -> float:
        """Add a minibatch's gradient, and return the policy's loss, without observations."""
        weights = minibatch_weights(rows.batch, chosen, plan.aggregation, self._max_response_length)
        data = rows.tensordict(
            {**_columns(rows.batch), **columns, "weights": weights},
            # Greedy sampling (temperature 0) records log-probs at temperature 1.
            temperature=self._settings.temperature or 1.0,
            calculate_entropy=self._settings.calculate_entropy or plan.entropy_coeff > 0,
            global_batch_size=int((rows.rows >= 0).sum()),
            minibatch=number,
        )
        metrics = workers.forward_backward(data)["metrics"]
        loss = float(metrics["loss"])
        for notes in _flatten(metrics[NOTES]):
            if notes.failure is not None:
                raise notes.failure.error()
            loss -= notes.prediction
            means.merge(notes.means)
            if traced is not None and notes.traced is not None:
                traced.add(number, notes.traced, weights, derive_seed(plan.seed, "loss", number))
        means.add("actor/loss", loss)
        return loss

    def _step(self, workers: Workers, rate: float, batch: TokenBatch, plan: UpdatePlan, means: Means) -> float:
        """Make an optimizer step, and return the norm of the gradient."""
        norm = float(workers.optimizer_step({"lr": rate})["grad_norm"])
        means.add("actor/grad_norm", norm)
        if not math.isfinite(norm):
            # verl skips the step in this case and would continue without a message.
            raise gradient_error(
                batch,
                plan.global_step,
                "Check actor/ratio_mean and actor/grad_norm of the previous steps, and lower "
                "actor_rollout_ref.actor.optim.lr.",
            )
        return norm


def _observation_shares(batch: TokenBatch, rows: NDArray[np.int64]) -> NDArray[np.float32] | None:
    """Return the shares of `rows` like `observation_shares`, without first tokens, which no token predicts."""
    shares = observation_shares(batch, rows)
    if shares is None:
        return None
    shares[batch.row_offsets[:-1]] = 0
    return shares if shares.any() else None


def _columns(batch: TokenBatch) -> dict[str, NDArray[np.float32]]:
    assert batch.advantages is not None
    assert batch.old_logprobs is not None
    columns = {
        "advantages": batch.advantages,
        "old_logprobs": batch.old_logprobs,
        "sampling_logprobs": batch.sampling_logprobs,
    }
    return columns if batch.ref_logprobs is None else columns | {"ref_logprobs": batch.ref_logprobs}


def _flatten(notes: Any) -> Iterator[Notes]:
    """Yield the notes of all ranks' micro-batches. verl returns a list of lists, or one list for a single rank."""
    if isinstance(notes, Notes):
        yield notes
    else:
        for each in notes:
            yield from _flatten(each)


class DriverTrace:
    """An update's trace. It computes the losses again from the workers' values."""

    def __init__(self, trace: UpdateTrace, batch: TokenBatch) -> None:
        self._trace = trace
        self._batch = batch

    def add(self, number: int, traced: TracedTokens, weights: NDArray[np.float32], seed: int) -> None:
        """Add a micro-batch of the optimizer step `number`. `weights` are (n_token of the batch,)."""
        batch = self._batch
        parts = [_sampled_indices(batch, row) for row in traced.rows.tolist()]
        source = np.concatenate(parts)
        row_ids = torch.from_numpy(np.repeat(traced.rows, [len(part) for part in parts]))
        logprobs = torch.tensor(traced.logprobs)  # A copy, because tensors from Ray may be read-only.
        inputs = LossInput.from_batch(batch, source, logprobs, row_ids, seed)
        entropies = None if traced.entropies is None else torch.tensor(traced.entropies)
        self._trace.add(number, source, inputs, entropies, torch.from_numpy(weights[source]))


def _sampled_indices(batch: TokenBatch, row: int) -> NDArray[np.int64]:
    """Return the indices of a row's sampled tokens in the batch, (n,). No token predicts its first token."""
    first, end = int(batch.row_offsets[row]) + 1, int(batch.row_offsets[row + 1])
    return first + np.flatnonzero(batch.loss_mask[first:end])
