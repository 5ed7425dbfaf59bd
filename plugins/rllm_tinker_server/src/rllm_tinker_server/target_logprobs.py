"""Log-probs of given tokens under a causal language model, without more than so many positions' logits at a time."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import BaseModelOutputWithPast


def target_logprobs(model: Any, tokens: Tensor, targets: Tensor, max_positions: int) -> Tensor:
    """The log-prob of each target after the tokens up to its position, with a gradient if torch's mode says so.

    Args:
        model: a Hugging Face causal model without dropout.
        tokens: (n_row, width) int64.
        targets: (n_row, width, k) int64.
        max_positions: of how many positions, counted over all rows, logits may be in memory. Where there are more, the
            output layer computes them in pieces, in the backward pass once again.

    Returns:
        (n_row, width, k) float32.
    """
    if tokens.numel() <= max_positions:
        return _gathered(model, tokens, targets)
    decoder = model.get_decoder()
    path = next(name for name, module in model.named_modules() if module is decoder)
    hidden = decoder(input_ids=tokens, use_cache=False).last_hidden_state

    def piece(hidden: Tensor, tokens: Tensor, targets: Tensor) -> Tensor:
        return _gathered(_with_module(model, path, _Computed(hidden)), tokens, targets)

    width = max(1, max_positions // len(tokens))
    cuts = zip(*(tensor.split(width, dim=1) for tensor in (hidden, tokens, targets)), strict=True)
    return torch.cat([checkpoint(piece, *cut, use_reentrant=False, preserve_rng_state=False) for cut in cuts], dim=1)


def _gathered(model: Any, tokens: Tensor, targets: Tensor) -> Tensor:
    logits = model(input_ids=tokens, use_cache=False).logits
    return torch.log_softmax(logits.float(), dim=-1).gather(-1, targets)


class _Computed(nn.Module):
    """Stands for a decoder whose hidden states are known, so that the model's own code makes logits of them."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        # transformers annotates its outputs with torch's old types.
        self._hidden: Any = hidden

    def forward(self, *arguments: Any, **settings: Any) -> BaseModelOutputWithPast:
        return BaseModelOutputWithPast(last_hidden_state=self._hidden)


def _with_module(model: nn.Module, path: str, module: nn.Module) -> nn.Module:
    """A model that differs from `model` in the module at `path` and shares everything else with it."""
    name, _, below = path.partition(".")
    copied = copy.copy(model)
    inner = _with_module(model.get_submodule(name), below, module) if below else module
    copied.__dict__["_modules"] = {**model.__dict__["_modules"], name: inner}
    return copied
