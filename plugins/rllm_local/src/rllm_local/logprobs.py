"""The forward pass for training: the model's outputs for a micro-batch's sampled tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from rllm_local import vocabulary
from rllm_local.exact_attention import FEWEST_ROWS
from rllm_local.prefix_trees import MicroBatch
from rllm_local.transfer import to_device
from rllm_local.tree_attention import carry_trees
from rllm_local.vocabulary import ChunkedOutputs, Distribution, chunked_outputs


@dataclass(frozen=True, eq=False)
class TokenOutputs:
    """Outputs for the sampled tokens, in the micro-batch's order. Each comes from the place before its token.

    Rows with a common prefix share the entries of its sampled tokens.
    """

    distribution_of_entries: Tensor
    """Log-probs of all tokens, (n_entry, n_vocabulary) float32."""
    logprobs_of_entries: Tensor
    """Log-probs of the sampled tokens, (n_entry,) float32."""
    entropies_of_entries: Tensor
    """Entropies in nats, (n_entry,) float32."""
    states: Tensor
    """The model's last hidden states in its own dtype, (n_entry, width)."""
    entries: Tensor
    """Entry of each sampled token, (n_sampled,) int64."""

    def at(self, chosen: NDArray[np.int64]) -> TokenOutputs:
        """Return the outputs of the sampled tokens `chosen`, (n,) indices."""
        return replace(self, entries=self.entries[to_device(self.entries.device, chosen)[0]])

    @property
    def vocabulary(self) -> int:
        """Number of tokens in the vocabulary."""
        return self.distribution_of_entries.shape[1]

    @property
    def logprobs(self) -> Tensor:
        """Log-probs of the sampled tokens, (n_sampled,) float32."""
        return self.logprobs_of_entries.index_select(0, self.entries)

    @property
    def hidden_states(self) -> Tensor:
        """The model's last hidden states in its own dtype, (n_sampled, width)."""
        return self.states.index_select(0, self.entries)

    def of_ids(self, ids: Tensor) -> Tensor:
        """Return the log-probs, (n_sampled, k), of other tokens at the same positions: `ids`, (n_sampled, k) int64."""
        return self.distribution_of_entries[self.entries[:, None], ids]

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """Return log-probs and ids, (n_sampled, k) each, of the k likeliest tokens."""
        logprobs, ids = self.distribution_of_entries.topk(k)
        return logprobs[self.entries], ids[self.entries]

    def entropies(self) -> Tensor:
        """Return the entropies in nats, (n_sampled,)."""
        return self.entropies_of_entries.index_select(0, self.entries)

    def sum_pi_squared(self) -> Tensor:
        """Return the sums of squared probabilities over the vocabulary, (n_sampled,)."""
        return (2 * self.distribution_of_entries).exp().sum(dim=-1)[self.entries]


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
    if len(part.places) * model.config.get_text_config().vocab_size > vocabulary.CHUNK and _ends_with_its_head(model):
        _, states = _forward(model, part, slice(0))
        return chunked_outputs(head, states, part.following, part.entries, temperature)
    logits, states = _forward(model, part, slice(None))
    distribution, logprobs, entropies = Distribution.apply(  # type: ignore[no-untyped-call]
        logits, part.following, temperature
    )
    return TokenOutputs(distribution, logprobs, entropies, states, part.entries)


def is_classifier(model: Any) -> bool:
    """Return True if the model scores conversations instead of predicting tokens."""
    return type(model).__name__.endswith("ForSequenceClassification")


def _scores(model: Any, part: MicroBatch) -> TokenOutputs:
    """Return the scores of the tokens before the sampled tokens as log-probs. Each row has one sampled token, its last.

    With them, an update of a policy is an update of a reward model: the gradient of a loss by log-probs is its gradient
    by scores. The distribution has one token, so that its entropy is 0.
    """
    states = model.base_model(**_inputs(model, part)).last_hidden_state[0, part.places]
    scores = model.score(states).float()
    zeros = torch.zeros_like(scores)
    return TokenOutputs(zeros, scores[:, 0], zeros[:, 0], states, part.entries)


def _forward(model: Any, part: MicroBatch, given: slice) -> tuple[Tensor, Tensor]:
    """Return logits (n, n_vocabulary) and last hidden states (n_entry, width) of the entries.

    `given` selects the n states that the output layer receives.
    """
    states: list[Tensor] = []

    def note(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        states.append(inputs[0][0])
        chosen = states[0][given]
        # A product of fewer rows has a different order of sums than the sampler's.
        missing = max(0, FEWEST_ROWS - len(chosen)) if len(chosen) else 0
        return (pad(chosen, (0, 0, 0, missing))[None],)

    # In any causal model, the output layer receives the last hidden state at the requested places.
    hook = model.get_output_embeddings().register_forward_pre_hook(note)
    try:
        logits = model(**_inputs(model, part), logits_to_keep=part.places).logits
    finally:
        hook.remove()
    return logits[0, : len(states[0][given])], states[0]


def _inputs(model: Any, part: MicroBatch) -> dict[str, Any]:
    return {
        "input_ids": part.input_ids,
        "position_ids": part.position_ids,
        "attention_mask": carry_trees(model, part.row_ends),
        "use_cache": False,
    }


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
