"""One policy update: minibatches, micro-batches, loss, gradient, AdamW."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rllm_backend_kit.learning_rate import learning_rate
from rllm_backend_kit.loss import LossTerms, RoleLosses, generalized_jsd, loss_terms, token_objective, with_tail
from rllm_backend_kit.minibatches import minibatch_weights, minibatches, observation_shares, target_shares
from rllm_backend_kit.overflow import gradient_error
from rllm_backend_kit.update_metrics import Means, note_clipping, note_critic, note_policy, note_rollout
from rllm_backend_kit.update_trace import UpdateTrace, clip_factor
from rllm_core.contracts.backend import UpdatePlan, UpdateResult
from rllm_core.contracts.loss import LossInput
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import ConfigError, LossError
from rllm_core.seeding import derive_seed
from rllm_local.critic import Critic, ValueGradient, critic_metrics
from rllm_local.logprobs import Outputs, token_outputs
from rllm_local.master_weights import MasterWeights
from rllm_local.prefix_trees import MicroBatch, micro_batches, sampled_places
from rllm_local.settings import TrainingSection
from rllm_local.transfer import map_tensors, to_device, to_host


class Updater:
    """Owns the optimizer. All random numbers come from `UpdatePlan.seed`, so an update is a function of its inputs."""

    def __init__(
        self,
        model: Any,
        settings: TrainingSection,
        *,
        total_steps: int,
        temperature: float,
        max_response_length: int,
        critic: Critic | None = None,
        masters: MasterWeights | None = None,
    ) -> None:
        """Create the optimizer. `masters` belong to the model. None to create them from its current weights."""
        self.masters = MasterWeights(model) if masters is None else masters
        self._model = model
        self._critic = critic
        self._settings = settings
        self._micro_batch_tokens = settings.tokens_per_microbatch(model.device.type)
        self._total_steps = total_steps
        self._temperature = temperature
        self._max_response_length = max_response_length
        self._role_losses = RoleLosses()
        self._value_gradient: ValueGradient | None = None
        groups: list[dict[str, Any]] = [{"params": list(self.masters)}]
        if critic is not None:
            self._value_gradient = ValueGradient(critic, self.masters)
            # Weight decay is proportional to the learning rate, and the critic's rate is many times the model's rate.
            groups.append({"params": list(critic.parameters()), "weight_decay": 0.0})
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            # One kernel. On a CPU it takes a third of the time of torch's default.
            fused=True,
        )

    def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        """Make one training step's update. Metrics are means over its sampled tokens or optimizer steps."""
        means = Means()
        rates = self._set_learning_rates(plan.global_step)
        settings = self._settings
        dealt = minibatches(batch.n_rows, settings.num_minibatches, settings.num_epochs, plan.seed)
        steps = min(settings.num_minibatches, batch.n_rows)
        trace = UpdateTrace(batch, plan, self._role_losses, steps) if plan.trace else None
        with checkpoint_layers(self._model) if settings.gradient_checkpointing else nullcontext():
            for number, rows in enumerate(dealt):
                self._step(batch, rows, plan, means, number, trace)
        metrics = rates | means.metrics() | (critic_metrics(batch) if self._critic is not None else {})
        return UpdateResult(metrics=metrics) if trace is None else trace.result(metrics)

    def _set_learning_rates(self, global_step: int) -> dict[str, float]:
        rates = {"actor": learning_rate(self._settings, global_step, self._total_steps)}
        if self._critic is not None:
            rates["critic"] = self._critic.settings.learning_rate * rates["actor"] / self._settings.learning_rate
        for rate, group in zip(rates.values(), self.optimizer.param_groups, strict=True):
            group["lr"] = rate
        return {f"{name}/lr": rate for name, rate in rates.items()}

    def _step(
        self,
        batch: TokenBatch,
        rows: NDArray[np.int64],
        plan: UpdatePlan,
        means: Means,
        number: int,
        trace: UpdateTrace | None,
    ) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        if self._value_gradient is not None:
            self._value_gradient.clear()
        weights = minibatch_weights(batch, rows, plan.aggregation, self._max_response_length)
        observed = observation_shares(batch, rows)
        targeted = target_shares(batch, rows)
        predicted = batch if observed is None else replace(batch, loss_mask=batch.loss_mask | (observed > 0))
        parts = micro_batches(predicted, rows, self._micro_batch_tokens, self._model.device)
        tokens = [self._backward(batch, part, weights, observed, targeted, plan, number) for part in parts]
        # One wait for the device. Checks and metrics use the copies.
        norms, tokens = to_host((self._clipped_norms(), tokens))
        for each in tokens:
            self._role_losses.check_finite(each.policy_losses, batch, each.inputs, plan)
        for name, norm in norms.items():
            means.add(f"{name}/grad_norm", float(norm))
            if not torch.isfinite(norm):
                raise gradient_error(
                    batch,
                    plan.global_step,
                    f"Check actor/ratio_mean and {name}/grad_norm of the previous steps, and lower "
                    "training.learning_rate.",
                    "advantages" if name == "actor" else "returns",
                )
        loss = sum(float(each.loss) for each in tokens)
        means.add("actor/loss", loss)
        for each in tokens:
            _note(means, each, batch, plan, is_first_step=number == 0)
        if trace is not None:
            for each in tokens:
                trace.add(number, each.source, each.inputs, each.entropies, each.shares)
            trace.end_step(
                number,
                loss,
                loss_seed=derive_seed(plan.seed, "loss", number),
                learning_rate=float(self.optimizer.param_groups[0]["lr"]),
            )
            actor_norm = float(norms["actor"])
            trace.note_norm(number, actor_norm, clip_factor(actor_norm, self._settings.max_grad_norm))
        self.optimizer.step()
        self.masters.write()

    def _clipped_norms(self) -> dict[str, Tensor]:
        """Clip the gradients of actor and critic, add them, and return their norms before clipping, () each."""
        limit = self._settings.max_grad_norm
        norms = {"actor": torch.nn.utils.clip_grad_norm_(self.masters, limit)}
        if self._value_gradient is not None:
            # Clip the critic's gradient separately, so that large errors of the critic do not reduce the policy's step.
            norms["critic"] = self._value_gradient.add_clipped_to_grads(limit)
        return norms

    def _backward(
        self,
        batch: TokenBatch,
        part: MicroBatch,
        weights: NDArray[np.float32],
        observed: NDArray[np.float32] | None,
        targeted: NDArray[np.float32] | None,
        plan: UpdatePlan,
        number: int,
    ) -> _Tokens:
        """Add a micro-batch to the gradient, and return its tokens for checks and metrics."""
        outputs = token_outputs(self._model, part, self._temperature)
        other: Tensor | float = 0.0
        observations = divergences = value_losses = None
        if observed is not None:
            other = -(outputs.logprobs * part.column(observed)).sum()
            observations = outputs.at((observed[part.source] > 0).nonzero()[0]).logprobs
            sampled = batch.loss_mask[part.source].nonzero()[0]
            outputs, part = outputs.at(sampled), part.at(sampled)
        if targeted is not None:
            divergences = target_divergences(outputs, part, batch)
            other = other + (divergences * part.column(targeted)).sum()
        seed = derive_seed(plan.seed, "loss", number)
        inputs = LossInput.from_batch(batch, part.source, outputs.logprobs, part.row_ids, seed)
        # Without an entropy bonus, the entropy is only a metric, so it needs no gradients over the vocabulary.
        with torch.set_grad_enabled(plan.entropy_coeff > 0):
            entropies = outputs.entropies()
        terms = loss_terms(inputs, plan)
        policy_losses = self._role_losses.compute(batch, inputs, plan)
        shares = part.column(weights)
        loss = (token_objective(policy_losses, terms, entropies, plan) * shares).sum()
        if self._value_gradient is not None and batch.returns is not None:
            value_losses = self._value_gradient.add(outputs, part, batch, shares)
        (loss + other).backward()  # type: ignore[no-untyped-call]
        tokens = _Tokens(
            source=part.source,
            inputs=inputs,
            terms=terms,
            entropies=entropies,
            policy_losses=policy_losses,
            shares=shares,
            loss=loss,
            observations=observations,
            divergences=divergences,
            value_losses=value_losses,
        )
        # Otherwise the layouts of all micro-batches would be in memory until the optimizer step.
        return map_tensors(tokens, Tensor.detach)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Tokens:
    """The sampled tokens of a micro-batch after its backward pass. Tensors are (n_sampled,) without a gradient."""

    source: NDArray[np.int64]
    """Places in the batch."""
    inputs: LossInput
    terms: LossTerms
    entropies: Tensor
    policy_losses: Tensor
    shares: Tensor
    """Weights of the tokens in the loss."""
    loss: Tensor
    """() the micro-batch's share of the policy's loss only."""
    observations: Tensor | None
    """(n,) log-probs of the observed tokens that are predicted."""
    divergences: Tensor | None
    value_losses: Tensor | None


def _note(means: Means, tokens: _Tokens, batch: TokenBatch, plan: UpdatePlan, *, is_first_step: bool) -> None:
    """Add the metrics of a micro-batch's tokens, which are on the CPU."""
    if tokens.observations is not None:
        means.add("actor/observation_loss", -tokens.observations)
    if tokens.divergences is not None:
        means.add("actor/target_divergence", tokens.divergences)
    if tokens.value_losses is not None:
        assert batch.returns is not None
        note_critic(means, tokens.value_losses, torch.from_numpy(batch.returns[tokens.source]))
    note_policy(means, tokens.inputs, tokens.terms, tokens.entropies)
    note_clipping(means, batch, tokens.inputs, plan)
    if is_first_step:
        note_rollout(means, tokens.inputs)


def target_divergences(outputs: Outputs, part: MicroBatch, batch: TokenBatch) -> Tensor:
    """Return the divergence of each sampled token from its target, (n_sampled,) in nats.

    All tokens outside the target's k tokens count as one token, unless k is the size of the vocabulary.

    Raises:
        LossError: the target has tokens that the model does not have.
    """
    assert batch.targets is not None
    places = sampled_places(batch)[part.source]
    target_ids = batch.targets.ids[places].astype(np.int64)
    if target_ids.size and target_ids.max() >= outputs.vocabulary:
        raise LossError(
            "target-beyond-vocabulary",
            f"A target distribution has token {target_ids.max()}, and the model has {outputs.vocabulary} tokens.",
            "Choose a teacher of the same model family, and set option k of stage topk_kl.",
        )
    ids, targets = to_device(outputs.logprobs.device, target_ids, batch.targets.logprobs[places])
    logprobs = outputs.of_ids(ids)
    if ids.shape[1] < outputs.vocabulary:
        logprobs, targets = with_tail(logprobs), with_tail(targets)
    return generalized_jsd(logprobs, targets, batch.targets.beta)


@contextmanager
def checkpoint_layers(model: Any) -> Iterator[None]:
    """Make forward passes of a `transformers` model store only each layer's input, (n_row, width, n_hidden).

    This context manager replaces `gradient_checkpointing_enable`, which works only in training mode. In that mode some
    layers apply dropout. Here the model stays in evaluation mode.

    Raises:
        ConfigError: the model has no layers that support recomputation.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            "no-gradient-checkpointing",
            f"training.gradient_checkpointing is true, but {type(model).__name__} has no layers that support it.",
            "Remove the key. To save memory, lower training.max_tokens_per_microbatch.",
        )
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
