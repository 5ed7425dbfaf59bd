"""The forward pass for training: the model's outputs for a micro-batch's sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import pad

from rllm_local import vocabulary
from rllm_local.attention import FULL, SLIDING, window_masks
from rllm_local.exact_attention import FEWEST_ROWS, Branches, CausalLayout, PackedLayout, carry, is_exact
from rllm_local.rows import MicroBatch
from rllm_local.vocabulary import ChunkedOutputs, chunked_outputs


@dataclass(frozen=True, eq=False)
class TokenOutputs:
    """Outputs for the sampled tokens, in the micro-batch's order. Each comes from the position before its token."""

    log_distribution: Tensor
    """Log-probs of all tokens, (n_sampled, n_vocabulary) float32."""
    logprobs: Tensor
    """Log-probs of the sampled tokens, (n_sampled,) float32."""
    hidden: Tensor
    """The model's last hidden states in its own dtype, (n_sampled, width)."""

    def at(self, chosen: Tensor) -> TokenOutputs:
        """Return the outputs for which `chosen`, (n_sampled,) bool, is true."""
        return TokenOutputs(self.log_distribution[chosen], self.logprobs[chosen], self.hidden[chosen])

    @property
    def vocabulary(self) -> int:
        """Number of tokens in the vocabulary."""
        return self.log_distribution.shape[1]

    def of_ids(self, ids: Tensor) -> Tensor:
        """Return the log-probs, (n_sampled, k), of other tokens at the same positions: `ids`, (n_sampled, k) int64."""
        return self.log_distribution.gather(1, ids)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """Return log-probs and ids, (n_sampled, k) each, of the k likeliest tokens."""
        logprobs, ids = self.log_distribution.topk(k)
        return logprobs, ids

    def entropies(self) -> Tensor:
        """Return the entropies in nats, (n_sampled,)."""
        return -(self.log_distribution.exp() * self.log_distribution).sum(dim=-1)

    def sum_pi_squared(self) -> Tensor:
        """Return the sums of squared probabilities over the vocabulary, (n_sampled,)."""
        return (2 * self.log_distribution).exp().sum(dim=-1)


Outputs = TokenOutputs | ChunkedOutputs


def token_outputs(model: Any, part: MicroBatch, temperature: float) -> Outputs:
    """Run a Hugging Face causal model, or a classifier, over a micro-batch.

    The logits of few tokens are stored for the gradient. The logits of many tokens are computed in chunks, and
    recomputed for the gradient.

    Args:
        model: a model. Gradients are recorded if torch's current mode records them.
        part: the micro-batch.
        temperature: the sampling temperature. The log-probs are compared with the sampler's log-probs at this
            temperature. Greedy sampling, at 0, recorded them at 1.
    """
    if is_classifier(model):
        return _scores(model, part)
    temperature = temperature or 1.0
    head = model.get_output_embeddings()
    if len(part.targets) * model.config.get_text_config().vocab_size > vocabulary.CHUNK and _ends_with_its_head(model):
        _, states = _forward(model, part, slice(0))
        return chunked_outputs(head, states, part.targets, temperature)
    logits, states = _forward(model, part, slice(None))
    distribution = torch.log_softmax(logits.float() / temperature, dim=-1)
    return TokenOutputs(
        log_distribution=distribution,
        logprobs=distribution.gather(1, part.targets[:, None])[:, 0],
        hidden=states,
    )


def is_classifier(model: Any) -> bool:
    """Return True if the model scores conversations instead of predicting tokens."""
    return type(model).__name__.endswith("ForSequenceClassification")


def _scores(model: Any, part: MicroBatch) -> TokenOutputs:
    """Return the scores of the tokens before the sampled tokens as log-probs. Each row has one sampled token, its last.

    With them, an update of a policy is an update of a reward model: the gradient of a loss by log-probs is its gradient
    by scores. The distribution has one token, so that its entropy is 0.
    """
    sequence, column = part.places
    ends = torch.zeros(len(part.input_ids), dtype=torch.int64, device=column.device)
    ends[sequence] = part.columns[column]
    mask = torch.arange(part.input_ids.shape[1], device=column.device) <= ends[:, None]
    # The classifier reads the score at the last token that is not padding.
    ids = part.input_ids.masked_fill(~mask, model.config.get_text_config().pad_token_id)
    scores = model(input_ids=ids, attention_mask=mask.long(), use_cache=False).logits.float()[sequence]
    return TokenOutputs(log_distribution=torch.zeros_like(scores), logprobs=scores[:, 0], hidden=scores)


def _forward(model: Any, part: MicroBatch, given: slice) -> tuple[Tensor, Tensor]:
    """Return logits (n, n_vocabulary) and last hidden states (n_sampled, width) at the positions before sampled tokens.

    `given` selects the n states that the output layer receives.
    """
    states: list[Tensor] = []

    def note(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        states.append(inputs[0][part.places])
        chosen = states[0][given]
        # A product of fewer rows has a different order of sums than the sampler's.
        missing = max(0, FEWEST_ROWS - len(chosen)) if len(chosen) else 0
        return (pad(chosen, (0, 0, 0, missing))[None],)

    # In any causal model, the output layer receives the last hidden state at the requested positions.
    hook = model.get_output_embeddings().register_forward_pre_hook(note)
    try:
        logits = model(
            input_ids=part.input_ids,
            position_ids=_position_ids(model, part),
            attention_mask=_attention_mask(model, part),
            use_cache=False,
            logits_to_keep=part.columns,
        ).logits
    finally:
        hook.remove()
    return logits[0, : len(states[0][given])], states[0]


def _position_ids(model: Any, part: MicroBatch) -> Tensor | None:
    if part.position_ids is not None or not is_exact(model):
        return part.position_ids
    # A model that gets no positions may compute them from the mask, for example OPT, and this mask only has a layout.
    return torch.arange(part.input_ids.shape[1], device=part.input_ids.device)[None]


def _attention_mask(model: Any, part: MicroBatch) -> Tensor | dict[str, Tensor] | None:
    if part.attention_mask is None or part.position_ids is None:
        if not is_exact(model):
            return None
        return carry(model.config.get_text_config(), partial(CausalLayout, part.input_ids.shape[1], model.dtype))
    return packed_mask(model, part.attention_mask, part.position_ids, part.branches)


def packed_mask(
    model: Any, visible: Tensor, positions: Tensor, branches: Sequence[Branches]
) -> Tensor | dict[str, Tensor]:
    """Return the `attention_mask` of packed sequences. The arguments are fields of a `MicroBatch`."""
    config = model.config.get_text_config()
    masks = additive(window_masks(config, visible, positions, positions), model.dtype)
    if not is_exact(model):
        return masks

    def layout(window: int | None) -> PackedLayout:
        mask = masks[SLIDING if window else FULL] if isinstance(masks, dict) else masks
        return PackedLayout(branches, mask, model.dtype, window)

    return carry(config, layout)


def additive(visible: Tensor | dict[str, Tensor], dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
    """Return the mask that attention adds to its scores.

    It is created once. From a bool mask, each layer would create its own and store it for the gradient.

    Args:
        visible: bool mask, or one mask for each layer type.
        dtype: the model's dtype.
    """
    if isinstance(visible, dict):
        return {kind: _additive_mask(mask, dtype) for kind, mask in visible.items()}
    return _additive_mask(visible, dtype)


def _additive_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, torch.finfo(dtype).min)


_ENDS_WITH_ITS_HEAD: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


@torch.no_grad()
def _ends_with_its_head(model: Any) -> bool:
    """Return True if the logits come from a plain linear layer. Some models scale or cap them or have an adapter."""
    if model not in _ENDS_WITH_ITS_HEAD:
        states: list[Tensor] = []
        head = model.get_output_embeddings()
        hook = head.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
        # Use several tokens. In many models the padding embedding is zero, so its logits are zero, scaled or not.
        ids = torch.arange(8, device=model.device)[None]
        try:
            logits = model(input_ids=ids, use_cache=False).logits
        finally:
            hook.remove()
        _ENDS_WITH_ITS_HEAD[model] = type(head) is torch.nn.Linear and torch.equal(logits, head(states[0]))
    return _ENDS_WITH_ITS_HEAD[model]
