"""From the examples of a request to micro-batches of similar length, and to the log-probs of their targets.

Data that cannot be trained on is rejected with the name of its datum, before anything is computed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import BaseModelOutputWithPast

from rllm_local.transfer import to_device
from rllm_tinker_server.losses import Loss, Targets, find_loss
from rllm_tinker_server.messages import BaseModelInfo, Example, ForwardBackward, RequestError


def check_examples(request: ForwardBackward, base: BaseModelInfo) -> None:
    """Let a request pass whose examples are what its loss and the model can read.

    Raises:
        RequestError: they are not.
    """
    loss = find_loss(request.loss)
    if not request.examples:
        raise RequestError("forward_backward without data. Send one datum at least.")
    for index, example in enumerate(request.examples):
        try:
            _check_tokens(example, base)
            _check_targets(example, loss, request.loss, base)
            _check_inputs(example, loss, request.loss)
        except RequestError as error:
            raise RequestError(f"Datum {index}: {error}") from None


def check_ids(ids: NDArray[np.integer], vocabulary: int, what: str) -> None:
    """Raise RequestError when some of `ids` are not tokens of the model."""
    outside = ids[(ids < 0) | (ids >= vocabulary)]
    if outside.size:
        raise RequestError(f"{what} has the token {outside[0]}. This model has tokens 0 to {vocabulary - 1}.")


def _check_tokens(example: Example, base: BaseModelInfo) -> None:
    tokens = example.tokens
    if tokens.ndim != 1:
        raise RequestError(f"the model input has shape {tokens.shape}. It must be (n,).")
    if not len(tokens):
        raise RequestError("the model input has no tokens.")
    if len(tokens) > base.max_context:
        raise RequestError(
            f"{len(tokens)} tokens, and {base.name} takes {base.max_context} at most. Shorten or remove it."
        )
    check_ids(tokens, base.vocabulary, "the model input")


def _check_targets(example: Example, loss: Loss, name: str, base: BaseModelInfo) -> None:
    length, targets = len(example.tokens), example.targets
    if targets.ndim not in (1, 2) or len(targets) != length or not targets.size:
        raise RequestError(
            f"target_tokens has shape {targets.shape} and the model input {length} tokens. Each token needs "
            f"one target, ({length},)."
        )
    if targets.ndim == 2 and not loss.many_targets:
        raise RequestError(f"target_tokens has shape {targets.shape}. {name} takes one target for each position.")
    check_ids(targets, base.vocabulary, "target_tokens")


def _check_inputs(example: Example, loss: Loss, name: str) -> None:
    needed = ", ".join(sorted(loss.inputs))
    for key in sorted(loss.inputs - example.inputs.keys()):
        raise RequestError(f"{key} is missing. {name} reads target_tokens, {needed}.")
    for key in sorted(example.inputs.keys() - loss.inputs):
        raise RequestError(f"{name} has no input {key!r}. It reads target_tokens, {needed}. Remove the others.")
    for key, values in example.inputs.items():
        if values.shape != example.targets.shape:
            raise RequestError(f"{key} has shape {values.shape} and target_tokens {example.targets.shape}.")
        if not np.isfinite(values).all():
            raise RequestError(f"{key} has {int((~np.isfinite(values)).sum())} values that are NaN or infinite.")
    if "sequence_ratio_mask" in loss.inputs and not example.inputs["sequence_ratio_mask"].any():
        raise RequestError(f"sequence_ratio_mask marks no position. {name} takes the mean over those it marks.")


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
        return _gather_logprobs(model, tokens, targets)
    decoder = model.get_decoder()
    path = next(name for name, module in model.named_modules() if module is decoder)
    hidden = decoder(input_ids=tokens, use_cache=False).last_hidden_state

    def piece(hidden: Tensor, tokens: Tensor, targets: Tensor) -> Tensor:
        return _gather_logprobs(_with_module(model, path, _FixedStates(hidden)), tokens, targets)

    width = max(1, max_positions // len(tokens))
    cuts = zip(*(tensor.split(width, dim=1) for tensor in (hidden, tokens, targets)), strict=True)
    return torch.cat([checkpoint(piece, *cut, use_reentrant=False, preserve_rng_state=False) for cut in cuts], dim=1)


def _gather_logprobs(model: Any, tokens: Tensor, targets: Tensor) -> Tensor:
    logits = model(input_ids=tokens, use_cache=False).logits
    return torch.log_softmax(logits.float(), dim=-1).gather(-1, targets)


class _FixedStates(nn.Module):
    """Replacement for a decoder that returns given hidden states. The model's own code then computes the logits."""

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


MAX_TARGETS = 1 << 24
"""Padded targets of a micro-batch; 128 MiB in int64. Few tokens can have many targets each."""


@dataclass(frozen=True, eq=False)
class ExampleBatch:
    """Some examples. ``n_target`` counts their targets, example after example, position after position."""

    members: tuple[int, ...]
    """Their places in the request."""
    examples: tuple[Example, ...]
    tokens: Tensor
    """(n_row, width) int64. Right padding needs no mask under causal attention."""
    targets: Tensor
    """(n_row, width, most targets of a position) int64, 0 where there is none."""
    real: Tensor
    """Which of `targets` are targets, bool; n_target of them."""

    def logprobs(self, model: Any, max_positions: int) -> Tensor:
        """Return (n_target,) float32, see `target_logprobs`."""
        # Gather before removing padding: a selection of rows with the vocabulary's width would copy them.
        return target_logprobs(model, self.tokens, self.targets, max_positions)[self.real]

    def has_same_tokens(self, other: ExampleBatch) -> bool:
        """True if both batches have the same tokens and targets in the same rows. Other inputs may differ."""
        tensors = (self.tokens, other.tokens), (self.targets, other.targets), (self.real, other.real)
        return all(torch.equal(mine, theirs) for mine, theirs in tensors)

    def with_logprobs(self, logprobs: Tensor) -> Targets:
        """Return the loss's input."""
        sizes = [example.targets.size for example in self.examples]
        names = self.examples[0].inputs
        columns = {name: np.concatenate([each.inputs[name].ravel() for each in self.examples]) for name in names}
        numbers = np.repeat(np.arange(len(sizes)), sizes)
        examples, *inputs = to_device(
            logprobs.device, numbers, *(column.astype(np.float32) for column in columns.values())
        )
        return Targets(logprobs=logprobs, examples=examples, inputs=dict(zip(columns, inputs, strict=True)))

    def split(self, values: Tensor) -> list[NDArray[np.float32]]:
        """(n_target,) values as one array per example, of the shape of its targets."""
        ends = np.cumsum([example.targets.size for example in self.examples])
        parts = np.split(values.detach().float().cpu().numpy(), ends[:-1])
        return [part.reshape(each.targets.shape) for part, each in zip(parts, self.examples, strict=True)]


def example_batches(examples: Sequence[Example], max_tokens: int, device: torch.device) -> Iterator[ExampleBatch]:
    """Cut examples into micro-batches, short ones first.

    Each has one example at least, and else `max_tokens` padded tokens and `MAX_TARGETS` padded targets at most. Each
    row is computed by itself, so the cut changes nothing but the rounding of sums.
    """
    lengths = [len(example.tokens) for example in examples]
    depths = [example.targets.size // len(example.tokens) for example in examples]
    order = np.argsort(lengths, kind="stable").tolist()
    start = 0
    while start < len(order):
        end, depth = start + 1, depths[order[start]]
        while end < len(order):
            depth = max(depth, depths[order[end]])
            padded = (end + 1 - start) * lengths[order[end]]
            if padded > max_tokens or padded * depth > MAX_TARGETS:
                break
            end += 1
        yield _pad(tuple(order[start:end]), examples, device)
        start = end


def _pad(members: tuple[int, ...], examples: Sequence[Example], device: torch.device) -> ExampleBatch:
    chosen = tuple(examples[member] for member in members)
    columns = [each.targets.reshape(len(each.tokens), -1) for each in chosen]
    width, depth = max(len(each) for each in columns), max(each.shape[1] for each in columns)
    tokens = np.zeros((len(chosen), width), np.int64)
    targets = np.zeros((len(chosen), width, depth), np.int64)
    real = np.zeros(targets.shape, np.bool_)
    for row, (example, column) in enumerate(zip(chosen, columns, strict=True)):
        tokens[row, : len(example.tokens)] = example.tokens
        targets[row, : column.shape[0], : column.shape[1]] = column
        real[row, : column.shape[0], : column.shape[1]] = True
    on_device = to_device(device, tokens, targets, real)
    return ExampleBatch(members, chosen, *on_device)
