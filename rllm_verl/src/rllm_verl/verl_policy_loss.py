"""verl's own policy losses, which verl's `ppo_loss` computes in the worker.

Unlike rllm's losses, they aggregate token losses themselves. They receive the sizes of the whole minibatch and
``rllm.algorithm.loss_agg_mode``, whose values have the same names in verl. So the aggregation is the same as for rllm's
losses. KL divergence and entropy bonus are not part of them, because rllm adds both to every loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from rllm_core.errors import LossError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensordict import TensorDict

    from rllm_core.contracts.loss import LossInput
    from rllm_verl.tokens import SampledTokens

MEANS_OF_ROWS = frozenset({"geo_mean"})
"""Losses that always take the mean over their rows, regardless of the minibatch's sizes."""


@dataclass(frozen=True)
class Aggregation:
    """The aggregation of a minibatch's token losses to one number."""

    mode: str
    """The value of ``rllm.algorithm.loss_agg_mode``."""
    max_response_length: int
    """The divisor of ``seq-mean-token-sum-norm``."""


@dataclass(frozen=True)
class VerlPolicyLoss:
    """A verl loss by its name in verl. The plugin specs of these losses load this class."""

    name: str

    def __call__(self, inputs: LossInput, params: Any, /) -> NoReturn:
        """Raise LossError, because these losses do not return one number per token."""
        raise LossError(
            "loss-not-supported",
            f"verl's loss {self.name!r} runs only in verl's workers.",
            "Use it with rllm/backend=verl, or set a different loss. `rllm plugins list` shows all losses.",
        )

    def share(
        self,
        tokens: SampledTokens,
        chosen: Tensor,
        options: Mapping[str, Any],
        rollout_weights: Tensor | None,
        aggregation: Aggregation,
    ) -> tuple[Tensor, dict[str, float]]:
        """Return a micro-batch's share of the minibatch's loss, and verl's metrics.

        Args:
            tokens: all sampled tokens of the micro-batch.
            chosen: (n_sampled,) bool, True for the tokens of this loss.
            options: fields of verl's `ActorConfig`.
            rollout_weights: (n_sampled,) weights of rollout correction.
            aggregation: the minibatch's aggregation.

        Returns:
            The loss (), multiplied by the number of ranks because FSDP averages their gradients. The metrics are means
            over `chosen`.
        """
        from verl.utils.metric import AggregationType
        from verl.workers.config.actor import ActorConfig, PolicyLossConfig
        from verl.workers.utils.losses import ppo_loss

        config = ActorConfig(
            # verl requires these fields, but they do not affect a loss.
            strategy="fsdp2",
            rollout_n=1,
            use_dynamic_bsz=True,
            policy_loss=PolicyLossConfig(loss_mode=self.name),
            loss_agg_mode=aggregation.mode,
            loss_scale_factor=aggregation.max_response_length,
            **options,
        )
        logprobs, data = _to_verl_inputs(tokens, chosen, rollout_weights)
        loss, metrics = ppo_loss(config, {"log_probs": logprobs}, data)
        if self.name in MEANS_OF_ROWS:
            loss = loss * len(data) / data["global_batch_size"] * data["dp_size"]
        means = {
            name: float(metric.aggregate())
            for name, metric in metrics.items()
            if metric.aggregation is AggregationType.MEAN
        }
        return loss, means


def _to_verl_inputs(tokens: SampledTokens, chosen: Tensor, rollout_weights: Tensor | None) -> tuple[Tensor, TensorDict]:
    """Return log-probs, nested like an engine's output, and the other inputs of `ppo_loss`.

    In verl a row has a prompt and a response. Here the first token is the prompt, all other tokens are the response,
    and the mask selects the sampled tokens.
    """
    from tensordict import TensorDict

    data, places = tokens.data, tokens.places
    offsets = data["input_ids"].offsets()
    ids = data["input_ids"].values()
    count = torch.arange(len(offsets), device=offsets.device)
    width = int(offsets.diff().max()) - 1
    inner = torch.ones_like(ids, dtype=torch.bool)
    inner[offsets[:-1]] = False

    def spread(values: Tensor, at: Tensor) -> Tensor:
        return torch.zeros(len(ids), dtype=values.dtype, device=ids.device).index_put((at,), values)

    def response(values: Tensor) -> Tensor:
        return torch.nested.nested_tensor_from_jagged(values[inner], offsets - count, max_seqlen=width)

    columns = {
        "prompts": torch.nested.nested_tensor_from_jagged(ids[offsets[:-1]], count),
        "responses": response(ids),
        "response_mask": response(spread(chosen, places)),
        "old_log_probs": response(spread(tokens.column("old_logprobs"), places)),
        "advantages": response(spread(tokens.column("advantages"), places)),
    }
    if rollout_weights is not None:
        columns["rollout_is_weights"] = response(spread(rollout_weights, places))
    wanted = TensorDict(columns, batch_size=[len(offsets) - 1])
    for name in ("dp_size", "batch_num_tokens", "global_batch_size"):
        wanted.set_non_tensor(name, data[name])
    logprobs = torch.nested.nested_tensor_from_jagged(spread(tokens.logprobs, places - 1), offsets)
    return logprobs, wanted
