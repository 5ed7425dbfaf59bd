"""One forward pass for sampling: it computes new tokens of many conversations with their cached keys and values."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_backend_kit.grammars import Grammar
from rllm_core.contracts.engine import SamplingParams
from rllm_local.decode_graphs import PassArrays
from rllm_local.exact_attention import BLOCK, FEWEST_ROWS, Layout, carry, let_layers_read_layouts
from rllm_local.kv_cache import Copy, PageCache
from rllm_local.page_attention import DecodeLayout, PromptLayout
from rllm_local.pages import page_count, page_places, page_start
from rllm_local.sampling import Draws, draw
from rllm_local.torch_attention import GatheredPages
from rllm_local.transfer import to_device


@dataclass(frozen=True, eq=False)
class Row:
    """One conversation in a forward pass."""

    pages: Sequence[int]
    """Numbers of the pages of its tokens, in order."""
    cached: int
    """Number of tokens before `fresh`. Their keys and values are in the pages."""
    fresh: NDArray[np.int32]
    """Tokens to compute, (n,). The sampled token follows the last of them."""
    sampling: SamplingParams
    position: int
    """Number of tokens that the request has already sampled."""
    grammar: Grammar | None = None
    """The grammar that constrains the next token; None if any token may follow."""
    stored: int = 0
    """Number of tokens whose keys and values are not written again, although some of them may be fresh."""
    source: int = 0
    """Number of the page that is copied first to the page after the last stored token. 0 if none is copied."""


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
def sample_next(model: Any, cache: PageCache, rows: Sequence[Row]) -> Draws:
    """Compute the rows' fresh tokens, and draw the next token of each row."""
    logits = last_logits(model, cache, rows)
    return draw(
        logits,
        [row.sampling for row in rows],
        [row.position for row in rows],
        [None if row.grammar is None else row.grammar.allowed_tokens() for row in rows],
    )


@torch.inference_mode()
def last_logits(model: Any, cache: PageCache, rows: Sequence[Row]) -> Tensor:
    """Compute the rows' fresh tokens, and return the logits of each row's next token, (n_row, n_vocabulary)."""
    return logits_after(model, cache, rows, 1)[:, 0]


def logits_after(model: Any, cache: PageCache, rows: Sequence[Row], n: int) -> Tensor:
    """Compute the rows' fresh tokens, and return the logits after each of the last n, (n_row, n, n_vocabulary).

    Fresh tokens are aligned to the right, so only the logits of the last positions are needed. Any Hugging Face causal
    model can compute only these.
    """
    let_layers_read_layouts(model)
    device, dtype = model.device, model.dtype
    lengths = np.array([len(row.fresh) for row in rows])
    cached = np.array([row.cached for row in rows])
    longest = width = int(lengths.max())
    is_exact = device.type == "cpu"
    few = is_exact and len(rows) < FEWEST_ROWS
    if is_exact and (width > 1 or few):
        width += -width % FEWEST_ROWS
    ids = np.zeros((len(rows), width), np.int64)
    for index, row in enumerate(rows):
        ids[index, width - len(row.fresh) :] = row.fresh
    column = np.arange(width) - (width - lengths)[:, None]
    real = column >= 0
    # Padding also sees position 0, because a query without visible keys gives NaN.
    positions = np.where(real, cached[:, None] + column, 0)
    pages, table = [row.pages for row in rows], _page_table(rows)
    _prepare(cache, rows, int(table.max()), device)
    arrays = PassArrays(ids, positions, _places(rows, table, positions, real), table)

    def layout(inputs: Sequence[Tensor], window: int | None) -> Layout:
        if not is_exact:
            return GatheredPages(inputs[3], inputs[1], window, dtype)
        if longest == 1:
            return DecodeLayout(pages, cached, window, dtype)
        return PromptLayout(pages, positions, window, dtype)

    def forward(*inputs: Tensor) -> tuple[Tensor, object]:
        cache.write_to(inputs[2])
        mask = carry(model.config.get_text_config(), partial(layout, inputs))
        output = model(
            input_ids=inputs[0],
            attention_mask=mask,
            position_ids=inputs[1],
            **{cache_argument(model): cache},
            use_cache=True,
            logits_to_keep=max(n, FEWEST_ROWS) if few else n,
        )
        return output.logits[:, -n:], mask

    if longest == n == 1:
        assert cache.graphs is not None
        logits = cache.graphs.compute(forward, arrays)
        if logits is not None:
            return logits
    return forward(*to_device(device, *arrays))[0]


def _page_table(rows: Sequence[Row]) -> NDArray[np.int64]:
    """Return the numbers of each row's pages, (n_row, n_page). 0 after a row's last page."""
    width = max(len(row.pages) for row in rows)
    return np.array([[*row.pages, *[0] * (width - len(row.pages))] for row in rows])


def _places(
    rows: Sequence[Row], table: NDArray[np.int64], positions: NDArray[np.int64], real: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the places of the new tokens' keys and values in the pages, (n_row * n_query,)."""
    index, place = page_places(positions)
    places = np.take_along_axis(table, index, axis=1) * BLOCK + place
    stored = np.array([row.stored for row in rows])
    places[~real | (positions < stored[:, None])] = 0
    return places.reshape(-1)


def _prepare(cache: PageCache, rows: Sequence[Row], highest: int, device: torch.device) -> None:
    """Prepare the pages of the rows. `highest` and `device` are arguments of `PageCache.prepare`."""
    copies, clear = [], []
    for row in rows:
        known = max(row.cached, row.stored)
        last = page_count(known + 1) - 1
        if row.source:
            copies.append(Copy(row.source, row.pages[last]))
        if page_start(len(row.pages) - 1) >= known:
            clear.append(row.pages[-1])
    cache.prepare(highest, copies, clear, device)
