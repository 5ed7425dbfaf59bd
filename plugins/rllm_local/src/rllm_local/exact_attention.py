"""Attention that gives a query the same bits in every forward pass on a CPU.

A query's output is a sum over keys, and the order of a floating-point sum determines its bits. torch chooses the order
by the number of keys in the pass. Here keys are summed in blocks of `BLOCK` positions of the conversation, and the
blocks' results are added in order, as in flash attention (Dao et al. 2022, arXiv:2205.14135). A block that a query
does not see adds exactly 0. So sampling with a cache, sampling in a batch, and training on packed rows are equal.

torch's kernel computes each block. It has no gradient for a block's sum of exponentials, so the gradient is computed
over all keys at once, from the output and that sum.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from rllm_local.attention import FULL, SLIDING, layer_types

BLOCK = 64
"""Number of positions whose keys are summed together. The first block is cut in half, for short conversations."""
FEWEST_ROWS = 4
"""Minimum number of rows in a product, because MKL sums fewer rows in other orders. Divides the number of queries."""
EXACT = "rllm_local_exact"
"""Name of this attention in a model's configuration."""

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_gradient = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def fix_order_of_sums() -> None:
    """Make MKL use one order of sums, so that a row has the same bits in all products with at least `FEWEST_ROWS` rows.

    MKL reads its environment variable at the process's first product. A user's value is kept.
    """
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


def use_torch_attention(model: Any) -> None:
    """Make a model's layers compute torch's scaled dot product attention."""
    model.config._attn_implementation = model.config.get_text_config()._attn_implementation = "sdpa"


def use_exact_attention(model: Any) -> None:
    """Make a model's layers compute this attention, also in copies of the model."""
    model.config._attn_implementation = model.config.get_text_config()._attn_implementation = EXACT
    output = model.get_output_embeddings()
    if output is not None:
        output.register_forward_pre_hook(_contiguous)


def _contiguous(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    # The last positions of several rows are a view with gaps. For such a view, torch computes one product per row.
    return tuple(each.contiguous() for each in inputs)


def is_exact(model: Any) -> bool:
    """Return True if the model computes this attention."""
    return bool(model.config.get_text_config()._attn_implementation == EXACT)


def blocks(length: int) -> list[slice]:
    """Return the blocks that contain the first `length` positions."""
    half = BLOCK // 2
    later = [slice(start, start + BLOCK) for start in range(BLOCK, length, BLOCK)]
    return [slice(0, half), *([slice(half, BLOCK)] if length > half else []), *later]


def whole_blocks(length: int) -> int:
    """Return the number of positions in the blocks that contain the first `length` positions."""
    return int(blocks(length)[-1].stop)


@dataclass(frozen=True, eq=False)
class BlockMask:
    """The queries that see keys of one block."""

    keys: slice
    """Positions of the block."""
    first: int
    """First query that sees the block. Earlier queries do not."""
    mask: Tensor
    """Number that is added to a score, (n or 1, 1, n_query - first, n_key): 0, or the smallest number of the dtype."""


def block_masks(positions: NDArray[np.int64], window: int | None, dtype: torch.dtype) -> tuple[BlockMask, ...]:
    """Return the masks of each block that a query sees.

    Args:
        positions: (n or 1, n_query) positions of the queries in their conversations.
        window: number of positions that a query sees, counted back from its own. None for all earlier ones.
        dtype: the queries' dtype.
    """
    highest, masks = positions.max(axis=0), []
    queries = torch.from_numpy(positions)[:, None, :, None]
    for block in blocks(int(highest.max()) + 1):
        first = int((highest >= block.start).argmax()) // FEWEST_ROWS * FEWEST_ROWS
        keys = torch.arange(block.start, block.stop)
        hidden = keys > queries[:, :, first:]
        if window is not None:
            hidden |= keys <= queries[:, :, first:] - window
        mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)
        masks.append(BlockMask(block, first, mask))
    return tuple(masks)


def attend_to_blocks(
    query: Tensor, key: Tensor, value: Tensor, masks: tuple[BlockMask, ...], scale: float
) -> tuple[Tensor, Tensor]:
    """Compute attention block by block.

    Args:
        query: (n, heads, n_query, size). `FEWEST_ROWS` divides ``n_query``.
        key: (n, key heads, n_key, size). It contains all positions of each block of `masks`.
        value: like `key`.
        masks: from `block_masks`. Their first block is seen by all queries.
        scale: factor of the scores.

    Returns:
        Outputs (n, heads, n_query, size), and logarithms of the sums of exponentials (n, heads, n_query) float32.
    """
    output = total = None
    for each in masks:
        part, part_total = _flash(
            query[:, :, each.first :],
            key[:, :, each.keys],
            value[:, :, each.keys],
            0.0,
            False,
            attn_mask=each.mask,
            scale=scale,
        )
        if output is None or total is None:
            output, total = part.float(), part_total
            continue
        # A block that a query does not see has the weight 0, so the query's output keeps its bits.
        old, old_total = output[:, :, each.first :], total[:, :, each.first :]
        largest = torch.maximum(old_total, part_total)
        old_weight, weight = (old_total - largest).exp_(), (part_total - largest).exp_()
        both = old_weight + weight
        old.mul_((old_weight / both)[..., None]).add_(part.float().mul_((weight / both)[..., None]))
        old_total.copy_(largest + both.log_())
    assert output is not None and total is not None
    return output.to(query.dtype), total


class Layout(ABC):
    """Assignment of the queries and keys of a forward pass to conversations."""

    @abstractmethod
    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Return outputs, (n, heads, n_query, size).

        Args:
            query: (n, heads, n_query, size).
            key: (n or n_slot, key heads, n_key, size).
            value: like `key`.
            scale: factor of the scores.
        """


@dataclass(frozen=True, eq=False)
class SlotLayout(Layout):
    """Layout of new tokens whose conversations have keys in cache slots. It has no gradient."""

    masks: tuple[BlockMask, ...]
    rows: Tensor | None = None
    """Index of each row's slot among the slots that are read, (n_row,) int64. None if they are the same."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        if query.shape[2] > 1:
            return attend_to_blocks(query, key, value, self.masks, scale)[0]
        # The query heads that share a key head become queries of one attention.
        n_row, heads, _, size = query.shape
        grouped = query.reshape(n_row, key.shape[1], -1, size)
        if self.rows is not None:
            grouped = grouped.new_zeros((key.shape[0], *grouped.shape[1:])).index_copy_(0, self.rows, grouped)
        group = grouped.shape[2]
        if missing := -group % FEWEST_ROWS:
            grouped = pad(grouped, (0, 0, 0, missing))
        masks = tuple(replace(each, mask=each.mask.expand(-1, -1, group + missing, -1)) for each in self.masks)
        output, _ = attend_to_blocks(grouped, key, value, masks, scale)
        if self.rows is not None:
            output = output.index_select(0, self.rows)
        return output[:, :, :group].reshape(n_row, heads, 1, size)


class _TrainedLayout(Layout):
    """A layout of whole conversations, with a gradient."""

    mask: Tensor | None
    """Number that is added to each score, (n, 1, n_query, n_key). None if each query sees all earlier keys."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        output: Tensor = _Attention.apply(query, key, value, self, scale)  # type: ignore[no-untyped-call]
        return output

    @abstractmethod
    def outputs(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Return the results of `attend_to_blocks`."""


class CausalLayout(_TrainedLayout):
    """Conversations in one sequence each. A position is a column."""

    def __init__(self, length: int, dtype: torch.dtype, window: int | None = None) -> None:
        positions = np.arange(length + -length % FEWEST_ROWS)[None]
        self._masks = block_masks(positions, window, dtype)
        self.mask = None
        if window is not None and window < length:
            column = torch.arange(length)
            hidden = (column > column[:, None]) | (column <= column[:, None] - window)
            self.mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)[None, None]

    def outputs(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        length = query.shape[2]
        queries, keys = (0, 0, 0, -length % FEWEST_ROWS), (0, 0, 0, whole_blocks(length) - length)
        output, total = attend_to_blocks(pad(query, queries), pad(key, keys), pad(value, keys), self._masks, scale)
        return output[:, :, :length], total[:, :, :length]


@dataclass(frozen=True, eq=False)
class Branches:
    """Parts of conversations in packed sequences. Each part continues an earlier part, for example a shared prompt.

    A place is the index of a token in all sequences, row by row.
    """

    queries: NDArray[np.int64]
    """(n, n_query) places of the part's tokens, -1 for padding."""
    positions: NDArray[np.int64]
    """(n, n_query) positions of these tokens in their conversation, 0 for padding."""
    keys: NDArray[np.int64]
    """(n, n_key) places of the conversation's tokens up to the end of the part, 0 for padding."""


class PackedLayout(_TrainedLayout):
    """Conversations that share sequences."""

    def __init__(
        self, branches: Sequence[Branches], mask: Tensor, dtype: torch.dtype, window: int | None = None
    ) -> None:
        """`mask` is the sequences' `_TrainedLayout.mask`."""
        self.mask = mask
        self._parts = [
            (
                torch.from_numpy(each.queries),
                torch.from_numpy(each.keys),
                block_masks(each.positions, window, dtype),
            )
            for each in branches
        ]

    def outputs(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        rows, heads, width, size = query.shape
        flat_query, flat_key, flat_value = (each.transpose(1, 2).flatten(0, 1) for each in (query, key, value))
        # The last place receives the results of padding. An infinite sum makes the gradient of padding 0.
        output = query.new_zeros((rows * width + 1, heads, size))
        total = torch.full((rows * width + 1, heads), torch.inf)
        for queries, keys, masks in self._parts:
            of_keys, of_values = (each[keys].transpose(1, 2) for each in (flat_key, flat_value))
            part, part_total = attend_to_blocks(flat_query[queries].transpose(1, 2), of_keys, of_values, masks, scale)
            output[queries] = part.transpose(1, 2)
            total[queries] = part_total.transpose(1, 2)
        return (
            output[:-1].view(rows, width, heads, size).transpose(1, 2),
            total[:-1].view(rows, width, heads).transpose(1, 2),
        )


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: _TrainedLayout, scale: float) -> Tensor:
        output, total = layout.outputs(query, key, value, scale)
        ctx.save_for_backward(query, key, value, output, total)
        ctx.layout, ctx.scale = layout, scale
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        mask = ctx.layout.mask
        gradients = _flash_gradient(gradient, *ctx.saved_tensors, 0.0, mask is None, attn_mask=mask, scale=ctx.scale)
        return *gradients, None, None


def carry(config: Any, layout: Callable[[int | None], Layout]) -> Tensor | dict[str, Tensor]:
    """Return the `attention_mask` with which a model's layers receive a layout.

    Args:
        config: text part of the model's configuration.
        layout: function from the number of positions that a layer's queries see, or None, to the layout.
    """
    if SLIDING not in layer_types(config):
        return _carry(layout(None))
    near = _carry(layout(config.sliding_window))
    # Models without `layer_types` receive one mask.
    return {FULL: _carry(layout(None)), SLIDING: near} if getattr(config, "layer_types", None) else near


def _carry(layout: Layout) -> Tensor:
    # transformers passes masks with four dimensions unchanged to the layers.
    mask = torch.empty(1, 1, 1, 1)
    mask.rllm_layout = layout  # type: ignore[attr-defined]
    return mask


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention by the layout of the pass. The layers of transformers call this function.

    Returns:
        (n, n_query, heads, size of values), and no weights.
    """
    layout: Layout | None = getattr(attention_mask, "rllm_layout", None)
    if layout is None:
        if attention_mask is not None or query.shape[2] != key.shape[2]:
            # The caller has its own mask or cache.
            output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
            return output, None
        layout = CausalLayout(query.shape[2], query.dtype, getattr(module, "sliding_window", None))
    size = value.shape[-1]
    if missing := query.shape[-1] - size:
        value = pad(value, (0, missing))
    # Some models call `view` on the result, as on the result of torch's attention in transformers.
    return layout.attend(query, key, value, scaling)[..., :size].transpose(1, 2).contiguous(), None


AttentionInterface.register(EXACT, attend)
AttentionMaskInterface.register(EXACT, sdpa_mask)
