"""One policy update: minibatches, micro-batches, loss, gradient, AdamW."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_core.algorithms.aggregation import token_weights
from rllm_core.algorithms.losses import checked
from rllm_core.batch import TokenBatch
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.loss import LossInput, PolicyLoss
from rllm_core.errors import RllmError
from rllm_core.seeding import derive_seed
from rllm_local.rows import MicroBatch, micro_batches, sampled_per_row
from rllm_local.schedule import learning_rate
from rllm_local.settings import TrainingSection


class Updater:
    """Owns the optimiser. Everything random comes from `UpdatePlan.seed`, so an update is a function of its inputs."""

    def __init__(
        self, model: Any, settings: TrainingSection, *, total_steps: int, temperature: float, max_response_length: int
    ) -> None:
        self._model = model
        self._settings = settings
        self._total_steps = total_steps
        # Log-probs are compared with those recorded while sampling, so they are taken at the same temperature.
        self._temperature = temperature or 1.0
        self._max_response_length = max_response_length
        self._loaded: dict[str, PolicyLoss] = {}
        self.optimizer = torch.optim.AdamW(
            [parameter for parameter in model.parameters() if parameter.requires_grad],
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )

    def update(self, batch: TokenBatch, plan: UpdatePlan) -> dict[str, float]:
        """Make the update of one training step and return its ``actor/…`` metrics, averaged over sampled tokens."""
        rate = learning_rate(self._settings, plan.global_step, self._total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        totals: dict[str, float] = defaultdict(float)
        minibatches = 0
        for rows in self._minibatches(batch, plan.seed):
            self._step(batch, rows, plan, totals, minibatches)
            minibatches += 1
        tokens = max(totals["tokens"], 1)
        return {
            "actor/lr": rate,
            "actor/grad_norm": totals["grad_norm"] / minibatches,
            "actor/loss": totals["loss"] / minibatches,
            "actor/rollout_logprob_difference": totals["rollout_difference"] / max(totals["on_policy_tokens"], 1),
            "actor/entropy": totals["entropy"] / tokens,
            "actor/kl_old_new": totals["kl_old_new"] / tokens,
            "actor/ratio_mean": totals["ratio_mean"] / tokens,
        }

    def _minibatches(self, batch: TokenBatch, seed: int) -> Iterator[NDArray[np.int64]]:
        generator = np.random.default_rng(seed)
        for _ in range(self._settings.num_epochs):
            order = generator.permutation(batch.n_rows)
            yield from np.array_split(order, min(self._settings.num_minibatches, batch.n_rows))

    def _step(
        self, batch: TokenBatch, rows: NDArray[np.int64], plan: UpdatePlan, totals: dict[str, float], number: int
    ) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        weights = self._weights(batch, rows, plan.aggregation)
        for part in micro_batches(batch, rows, self._settings.max_tokens_per_microbatch, self._model.device):
            self._backward(batch, part, weights, plan, totals, number)
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.max_grad_norm)
        if not torch.isfinite(norm):
            raise RllmError(
                f"A gradient of step {plan.global_step} is not finite; the run ends before it reaches the weights.",
                "Look at actor/ratio_mean and actor/grad_norm of the steps before, lower training.learning_rate, "
                "and go on from the newest checkpoint with --resume.",
            )
        self.optimizer.step()
        totals["grad_norm"] += float(norm)

    def _weights(self, batch: TokenBatch, rows: NDArray[np.int64], aggregation: str) -> NDArray[np.float32]:
        """(n_token of the batch,) weight of each sampled token of `rows`, 0 elsewhere."""
        ordered = np.sort(rows)
        in_rows = np.repeat(np.isin(np.arange(batch.n_rows), ordered), batch.row_lengths)
        chosen = in_rows & batch.loss_mask
        weights = np.zeros(len(batch.tokens), np.float32)
        weights[chosen] = token_weights(aggregation, sampled_per_row(batch)[ordered], self._max_response_length)
        return weights

    def _backward(
        self,
        batch: TokenBatch,
        part: MicroBatch,
        weights: NDArray[np.float32],
        plan: UpdatePlan,
        totals: dict[str, float],
        number: int,
    ) -> None:
        assert batch.advantages is not None
        assert batch.old_logprobs is not None
        device = part.input_ids.device

        def column(values: NDArray[np.float32]) -> Tensor:
            return torch.from_numpy(values[part.source]).to(device)

        logprobs, entropy = self._logprobs(part, keep_entropy=plan.entropy_coeff > 0)
        inputs = LossInput(
            logprobs=logprobs,
            old_logprobs=column(batch.old_logprobs),
            advantages=column(batch.advantages),
            row_ids=part.row_ids,
            sampling_logprobs=column(batch.sampling_logprobs),
            ref_logprobs=None if batch.ref_logprobs is None else column(batch.ref_logprobs),
            seed=derive_seed(plan.seed, "loss", number),
        )
        token_loss = self._token_loss(batch, inputs, plan)
        if plan.entropy_coeff:
            token_loss = token_loss - plan.entropy_coeff * entropy
        loss = (token_loss * column(weights)).sum()
        loss.backward()
        with torch.no_grad():
            log_ratio = logprobs - inputs.old_logprobs
            totals["tokens"] += len(logprobs)
            totals["loss"] += float(loss)
            totals["entropy"] += float(entropy.sum())
            totals["kl_old_new"] += float((log_ratio.exp() - 1 - log_ratio).sum())
            totals["ratio_mean"] += float(log_ratio.exp().sum())
            if number == 0:
                # Before the first optimiser step the weights are still those that sampled.
                totals["rollout_difference"] += float((logprobs - inputs.sampling_logprobs).abs().sum())
                totals["on_policy_tokens"] += len(logprobs)

    def _logprobs(self, part: MicroBatch, *, keep_entropy: bool) -> tuple[Tensor, Tensor]:
        """(n_sampled,) log-probs of the sampled tokens and entropies of the distributions they came from."""
        logits = self._model(input_ids=part.input_ids, use_cache=False, logits_to_keep=part.columns).logits
        distribution = torch.log_softmax(logits[part.selected].float() / self._temperature, dim=-1)
        logprobs = distribution.gather(1, part.targets[:, None])[:, 0]
        # Without a bonus the entropy is only a metric: keeping a vocabulary of gradients for it would be waste.
        with nullcontext() if keep_entropy else torch.no_grad():
            entropy = -(distribution.exp() * distribution).sum(dim=-1)
        return logprobs, entropy

    def _token_loss(self, batch: TokenBatch, inputs: LossInput, plan: UpdatePlan) -> Tensor:
        """Each role's tokens go through that role's loss."""
        if len(batch.roles) == 1:
            return self._apply(batch.roles[0], inputs, plan)
        roles = torch.from_numpy(batch.role).to(inputs.row_ids.device)[inputs.row_ids]
        losses = torch.zeros_like(inputs.logprobs)
        for index, role in enumerate(batch.roles):
            chosen = roles == index
            if chosen.any():
                losses = losses.masked_scatter(chosen, self._apply(role, inputs.at(chosen), plan))
        return losses

    def _apply(self, role: str, inputs: LossInput, plan: UpdatePlan) -> Tensor:
        choice = plan.losses[role]
        if role not in self._loaded:
            self._loaded[role] = choice.plugin.load()
        losses = self._loaded[role](inputs, choice.params)
        return checked(losses, inputs, f"loss {choice.plugin.name!r} for role {role!r}")
