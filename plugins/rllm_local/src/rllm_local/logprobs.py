"""The forward pass of training: what a model says about the sampled tokens of a micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from rllm_local import vocabulary
from rllm_local.attention import window_masks
from rllm_local.rows import MicroBatch
from rllm_local.vocabulary import ChunkedOutputs, chunked_outputs


@dataclass(frozen=True, eq=False)
class TokenOutputs:
    """One entry per sampled token, in the order of the micro-batch; computed where the token was sampled from."""

    log_distribution: Tensor
    """(n_sampled, n_vocabulary) float32, log-probs of all tokens."""
    logprobs: Tensor
    """(n_sampled,) float32, log-probs of the sampled tokens."""
    hidden: Tensor
    """(n_sampled, width) the model's last hidden states, in its own dtype."""

    def entropies(self) -> Tensor:
        """(n_sampled,) in nats."""
        return -(self.log_distribution.exp() * self.log_distribution).sum(dim=-1)

    def sum_pi_squared(self) -> Tensor:
        """(n_sampled,) sum over the vocabulary of squared probabilities."""
        return (2 * self.log_distribution).exp().sum(dim=-1)


Outputs = TokenOutputs | ChunkedOutputs


def token_outputs(model: Any, part: MicroBatch, temperature: float) -> Outputs:
    """Run a Hugging Face causal model over a micro-batch.

    Logits of few tokens are kept for the gradient. Those of many are computed in chunks, and again for the gradient.

    Args:
        model: gradients are recorded as torch's current mode says.
        part: its rows.
        temperature: of the sampling, which recorded the log-probs that ours are compared with; greedy sampling, at 0,
            recorded them at 1.
    """
    temperature = temperature or 1.0
    head = model.get_output_embeddings()
    if len(part.targets) * model.config.get_text_config().vocab_size > vocabulary.CHUNK and _ends_with_its_head(model):
        _, states = _forward(model, part, _none)
        return chunked_outputs(head, states, part.targets, temperature)
    logits, states = _forward(model, part, _all)
    distribution = torch.log_softmax(logits.float() / temperature, dim=-1)
    return TokenOutputs(
        log_distribution=distribution,
        logprobs=distribution.gather(1, part.targets[:, None])[:, 0],
        hidden=states,
    )


def _forward(model: Any, part: MicroBatch, given: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Where sampled tokens of `part` are predicted: logits (n, n_vocabulary), last hidden states (n_sampled, width).

    `given`: which n of these states the output layer gets.
    """
    states: list[Tensor] = []

    def note(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        states.append(inputs[0][part.places])
        return (given(states[0])[None],)

    # What the output layer is given is the last hidden state at the positions asked for, in any causal model.
    hook = model.get_output_embeddings().register_forward_pre_hook(note)
    try:
        logits = model(
            input_ids=part.input_ids,
            position_ids=part.position_ids,
            attention_mask=_attention_mask(model, part),
            use_cache=False,
            logits_to_keep=part.columns,
        ).logits
    finally:
        hook.remove()
    return logits[0], states[0]


def _attention_mask(model: Any, part: MicroBatch) -> Tensor | dict[str, Tensor] | None:
    if part.attention_mask is None or part.position_ids is None:
        return None
    config, positions = model.config.get_text_config(), part.position_ids
    return additive(window_masks(config, part.attention_mask, positions, positions), model.dtype)


def additive(visible: Tensor | dict[str, Tensor], dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
    """What attention adds to its scores. Made once: of a bool mask each layer makes one, and keeps it for the gradient.

    Args:
        visible: bool, per type of layer if there are several.
        dtype: of the model.
    """
    if isinstance(visible, dict):
        return {kind: _additive_mask(mask, dtype) for kind, mask in visible.items()}
    return _additive_mask(visible, dtype)


def _additive_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, torch.finfo(dtype).min)


def _all(states: Tensor) -> Tensor:
    return states


def _none(states: Tensor) -> Tensor:
    return states[:0]


_ENDS_WITH_ITS_HEAD: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


@torch.no_grad()
def _ends_with_its_head(model: Any) -> bool:
    """Whether logits are what a plain linear layer gives: some models scale or cap them, and layers have adapters."""
    if model not in _ENDS_WITH_ITS_HEAD:
        states: list[Tensor] = []
        head = model.get_output_embeddings()
        hook = head.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
        # Several tokens: the embedding of padding is zero in many models, and then so are logits, scaled or not.
        ids = torch.arange(8, device=model.device)[None]
        try:
            logits = model(input_ids=ids, use_cache=False).logits
        finally:
            hook.remove()
        _ENDS_WITH_ITS_HEAD[model] = type(head) is torch.nn.Linear and torch.equal(logits, head(states[0]))
    return _ENDS_WITH_ITS_HEAD[model]
