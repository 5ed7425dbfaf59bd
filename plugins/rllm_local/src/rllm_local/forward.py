"""One forward pass for sampling: it computes new tokens of many conversations with their cached keys and values."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_backend_kit.grammars import Grammar
from rllm_core.contracts.engine import SamplingParams
from rllm_local.attention import over_slots, window_masks
from rllm_local.exact_attention import FEWEST_ROWS, SlotLayout, block_masks, carry, is_exact, whole_blocks
from rllm_local.kv_cache import CacheView, SlotCache
from rllm_local.sampling import Draws, draw


@dataclass(frozen=True, eq=False)
class Row:
    """One conversation in a forward pass."""

    slot: int
    cached: int
    """Number of tokens already in the slot."""
    fresh: NDArray[np.int32]
    """Tokens to compute, (n,). The sampled token follows the last of them."""
    sampling: SamplingParams
    position: int
    """Number of tokens that the request has already sampled."""
    grammar: Grammar | None = None
    """The grammar that constrains the next token; None if any token may follow."""


def cache_argument(model: Any) -> str:
    """Return the name of the argument for cached keys and values. Newer versions of transformers call it ``cache``."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    kind: Any = type(base)
    return _cache_argument(kind)


@lru_cache
def _cache_argument(kind: Any) -> str:
    return "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"


def cache_bytes_per_token(model: Any) -> int:
    """Return the bytes of one token's keys and values over all layers."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    key_and_value = 2 * size
    if getattr(config, "kv_lora_rank", None):
        # Latent attention caches the keys and values of all query heads, which differ in size.
        heads = config.num_attention_heads
        key_and_value = config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim
    element = next(model.parameters()).element_size()
    return int(config.num_hidden_layers * heads * key_and_value * element)


def buckets(rows: Sequence[Row], max_tokens: int) -> list[list[int]]:
    """Return groups of row indices to compute together. Rows of a group have similar lengths, to limit padding."""
    by_size: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        by_size.setdefault(max(8, 1 << (len(row.fresh) - 1).bit_length()), []).append(index)
    parts = []
    for size, indices in sorted(by_size.items()):
        count = max(1, max_tokens // size)
        parts += [indices[start : start + count] for start in range(0, len(indices), count)]
    return parts


@torch.inference_mode()
def sample_next(model: Any, cache: SlotCache, rows: Sequence[Row]) -> Draws:
    """Compute the rows' fresh tokens, and draw the next token of each row."""
    logits = last_logits(model, cache, rows)
    return draw(
        logits,
        [row.sampling for row in rows],
        [row.position for row in rows],
        [None if row.grammar is None else row.grammar.allowed_tokens() for row in rows],
    )


@torch.inference_mode()
def last_logits(model: Any, cache: SlotCache, rows: Sequence[Row]) -> Tensor:
    """Compute the rows' fresh tokens, and return the logits of each row's next token, (n_row, n_vocabulary)."""
    return logits_after(model, cache, rows, 1)[:, 0]


def logits_after(model: Any, cache: SlotCache, rows: Sequence[Row], n: int) -> Tensor:
    """Compute the rows' fresh tokens, and return the logits after each of the last n, (n_row, n, n_vocabulary).

    Fresh tokens are aligned to the right, so only the logits of the last positions are needed. Any Hugging Face causal
    model can compute only these.
    """
    device, exact = model.device, is_exact(model)
    lengths = np.array([len(row.fresh) for row in rows])
    cached = np.array([row.cached for row in rows])
    width = int(lengths.max())
    few = exact and len(rows) < FEWEST_ROWS
    if exact and (width > 1 or few):
        width += -width % FEWEST_ROWS
    ids = np.zeros((len(rows), width), np.int64)
    for index, row in enumerate(rows):
        ids[index, width - len(row.fresh) :] = row.fresh
    column = np.arange(width) - (width - lengths)[:, None]
    real = column >= 0
    # Padding also sees position 0, because a query without visible keys gives NaN.
    positions = np.where(real, cached[:, None] + column, 0)
    length = int((cached + lengths).max())
    slots = np.array([row.slot for row in rows])
    view = cache.select(slots, np.where(real, positions, -1), whole_blocks(length) if exact else length, device)
    queries = positions if view.rows is None else _spread(positions, view)
    with nullcontext() if exact else over_slots(model, view.rows):
        output = model(
            input_ids=torch.from_numpy(ids).to(device),
            attention_mask=_exact_masks(model, queries, view) if exact else _masks(model, queries, view),
            position_ids=torch.from_numpy(positions).to(device),
            **{cache_argument(model): cache},
            use_cache=True,
            logits_to_keep=max(n, FEWEST_ROWS) if few else n,
        )
    logits: Tensor = output.logits[:, -n:]
    return logits


def _exact_masks(model: Any, queries: NDArray[np.int64], view: CacheView) -> Any:
    def layout(window: int | None) -> SlotLayout:
        return SlotLayout(block_masks(queries, window, model.dtype), view.rows)

    return carry(model.config.get_text_config(), layout)


def _masks(model: Any, queries: NDArray[np.int64], view: CacheView) -> Tensor | dict[str, Tensor]:
    of_queries = torch.from_numpy(queries).to(model.device)
    keys = torch.arange(view.length, device=model.device)[None]
    visible = (keys <= of_queries[:, :, None])[:, None]
    return window_masks(model.config.get_text_config(), visible, of_queries, keys)


def _spread(positions: NDArray[np.int64], view: CacheView) -> NDArray[np.int64]:
    """Return the rows' positions at their slots, (n_slot, n_query), and 0 at slots without a row."""
    assert isinstance(view.slots, slice)
    assert view.rows is not None
    spread = np.zeros((view.slots.stop - view.slots.start, positions.shape[1]), np.int64)
    spread[view.rows.cpu().numpy()] = positions
    return spread
