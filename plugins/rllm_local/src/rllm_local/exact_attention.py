"""Attention that gives a query the same bits in every forward pass on a CPU.

A query's output is a sum over keys, and the order of a floating-point sum determines its bits. torch chooses the order
by the number of keys in the pass. Here keys are summed in blocks of `BLOCK` positions of the conversation, and the
blocks' results are added in order, as in flash attention (Dao et al. 2022, arXiv:2205.14135). A block that a query
does not see adds exactly 0. So sampling with a cache, sampling in a batch, and training on prefix trees are equal.

torch's kernel computes each block. It has no gradient for a block's sum of exponentials, so the gradient is computed
over all keys at once, from the output and that sum.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
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
TORCH = "rllm_local"
"""Name of torch's attention in a model's configuration. It also computes the layouts that `carry` returns."""

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def fix_order_of_sums() -> None:
    """Make MKL use one order of sums, so that a row has the same bits in all products with at least `FEWEST_ROWS` rows.

    MKL reads its environment variable at the process's first product. A user's value is kept.
    """
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


def use_torch_attention(model: Any) -> None:
    """Make a model's layers compute torch's scaled dot product attention."""
    model.config._attn_implementation = model.config.get_text_config()._attn_implementation = TORCH


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


def let_layers_read_layouts(model: Any) -> None:
    """Make a model's layers read layouts, if they compute torch's attention as transformers does.

    Raises:
        ValueError: the layers compute a different attention, and would read a layout as a mask.
    """
    name = model.config.get_text_config()._attn_implementation
    if name == "sdpa":
        use_torch_attention(model)
    elif name not in (EXACT, TORCH):
        raise ValueError(f"the model has the attention {name!r}. Load it with attn_implementation='sdpa'.")


def blocks(length: int) -> list[slice]:
    """Return the blocks that contain the first `length` positions."""
    half = BLOCK // 2
    later = [slice(start, start + BLOCK) for start in range(BLOCK, length, BLOCK)]
    return [slice(0, half), *([slice(half, BLOCK)] if length > half else []), *later]


def whole_blocks(length: int) -> int:
    """Return the number of positions in the blocks that contain the first `length` positions."""
    return int(blocks(length)[-1].stop)


def complete_blocks(length: int) -> int:
    """Return the number of positions in the blocks that end within the first `length` positions."""
    return length // BLOCK * BLOCK or length // (BLOCK // 2) * (BLOCK // 2)


@dataclass(frozen=True, eq=False)
class BlockMask:
    """The queries that see keys of one block."""

    keys: slice
    """Positions of the block."""
    first: int
    """First query that sees the block. Earlier queries do not."""
    mask: Tensor | None
    """Number that is added to a score, (n or 1, 1, n_query - first, n_key): 0, or the smallest number of the dtype.
    None if all queries see the block."""


def additive_mask(positions: Tensor, n_key: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """Return the number that is added to each score, (n, 1, n_query, n_key): 0, or the smallest number of the dtype.

    Args:
        positions: (n, n_query) positions of the queries in their conversations.
        n_key: number of keys. A key's index is its position.
        window: number of positions that a query sees, counted back from its own. None for all earlier ones.
        dtype: the queries' dtype.
    """
    queries, keys = positions[:, None, :, None], torch.arange(n_key, device=positions.device)
    hidden = keys > queries
    if window is not None:
        hidden |= keys <= queries - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
    return mask.masked_fill_(hidden, torch.finfo(dtype).min)


def block_masks(positions: NDArray[np.int64], window: int | None, dtype: torch.dtype) -> tuple[BlockMask, ...]:
    """Return the masks of each block that a query sees. `positions` and the others are arguments of `additive_mask`."""
    n_key = whole_blocks(int(positions.max()) + 1)
    return cut_into_blocks(additive_mask(torch.from_numpy(positions), n_key, window, dtype), positions)


def cut_into_blocks(mask: Tensor, positions: NDArray[np.int64], start: int = 0) -> tuple[BlockMask, ...]:
    """Return views of an `additive_mask` for each block that a query sees.

    With `start`, the number of positions in the first few blocks, these blocks are omitted, and the mask and the
    results are about the other keys.
    """
    highest, masks = positions.max(axis=0), []
    for block in blocks(int(highest.max()) + 1):
        if block.start >= start:
            first = int((highest >= block.start).argmax()) // FEWEST_ROWS * FEWEST_ROWS
            keys = slice(block.start - start, block.stop - start)
            masks.append(BlockMask(keys, first, mask[:, :, first:, keys]))
    return tuple(masks)


def attend_to_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    masks: tuple[BlockMask, ...],
    scale: float,
    earlier: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute attention block by block.

    Args:
        query: (n, heads, n_query, size). `FEWEST_ROWS` divides ``n_query``.
        key: (n, key heads, n_key, size). It contains all positions of each block of `masks`.
        value: like `key`.
        masks: from `block_masks`. Their first block is seen by all queries.
        scale: factor of the scores.
        earlier: results for the blocks before these. They may change.

    Returns:
        Outputs (n, heads, n_query, size), and logarithms of the sums of exponentials (n, heads, n_query). Both are
        float64 if the queries are, else float32.
    """
    output, total = (None, None) if earlier is None else earlier
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
            output, total = part.to(part_total.dtype), part_total
            continue
        # A block that a query does not see has the weight 0, so the query's output keeps its bits.
        old, old_total = output[:, :, each.first :], total[:, :, each.first :]
        largest = torch.maximum(old_total, part_total)
        old_weight, weight = (old_total - largest).exp_(), (part_total - largest).exp_()
        both = old_weight + weight
        old.mul_((old_weight / both)[..., None]).add_(part.to(total.dtype).mul_((weight / both)[..., None]))
        old_total.copy_(largest + both.log_())
    assert output is not None and total is not None
    return output, total


def flash_gradient(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    total: Tensor,
    mask: Tensor | None,
    scale: float,
    *,
    is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value, from the results of `attend_to_blocks` for all keys.

    The keys may be a part of all keys. Then the gradient of the query is the part's share.

    Args:
        mask: number that is added to each score, (n, 1, n_query, n_key), or None.
        is_causal: True if queries and keys are the same tokens, and a query does not see later tokens.
    """
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    gradients: tuple[Tensor, Tensor, Tensor] = backward(
        gradient, query, key, value, output, total, 0.0, is_causal, attn_mask=mask, scale=scale
    )
    return gradients


class Layout(ABC):
    """Assignment of the queries and keys of a forward pass to conversations."""

    @abstractmethod
    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Return outputs, (n, heads, n_query, size).

        Args:
            query: (n, heads, n_query, size).
            key: (n, key heads, n_key, size).
            value: like `key`.
            scale: factor of the scores.
        """


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
        # The caller has no mask, or its own mask or cache.
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
        return output, None
    size = value.shape[-1]
    if missing := query.shape[-1] - size:
        value = pad(value, (0, missing))
    # Some models call `view` on the result, as on the result of torch's attention in transformers.
    return layout.attend(query, key, value, scaling)[..., :size].transpose(1, 2).contiguous(), None


for _name in (EXACT, TORCH):
    AttentionInterface.register(_name, attend)
    AttentionMaskInterface.register(_name, sdpa_mask)
