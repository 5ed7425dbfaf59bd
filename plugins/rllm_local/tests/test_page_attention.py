"""Attention over pages equals attention of each conversation over its own keys, on a CPU and on other devices."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pretend_device
import pytest
import torch
from close import assert_close
from hypothesis import given, settings, strategies as st
from local_models import assert_as_without_cache, one_order_of_sums
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from rllm_core.contracts.engine import SamplingParams
from rllm_local import page_attention
from rllm_local.engine import LocalEngine
from rllm_local.exact_attention import (
    FEWEST_ROWS,
    attend_to_blocks,
    block_masks,
    use_torch_attention,
    whole_blocks,
)
from rllm_local.kv_cache import PageLayer
from rllm_local.page_attention import DecodeLayout
from rllm_local.pages import page_count, page_places
from rllm_local.torch_attention import GatheredPages

SIZE, VALUE_SIZE = 16, 12


def _conversations(shape: list[tuple[int, int]]) -> list[list[int]]:
    """Return page numbers of conversations. `shape` has their lengths, and their numbers of shared pages."""
    numbers, free = [], iter(np.random.default_rng(0).permutation(np.arange(40, 999)).tolist())
    for length, shared in shape:
        count = page_count(length)
        common = min(shared, count - 1)
        numbers.append([*range(1, common + 1), *(next(free) for _ in range(count - common))])
    return numbers


def _layer(key_heads: int, value_size: int, dtype: torch.dtype = torch.float32) -> PageLayer:
    layer, draw = PageLayer(), torch.Generator().manual_seed(1)
    layer.keys, layer.values = (
        torch.randn(1000, 64, key_heads, size, generator=draw).to(dtype) for size in (SIZE, value_size)
    )
    return layer


def _of_row(layer: PageLayer, pages: list[int], length: int) -> tuple[Tensor, Tensor]:
    """Return the keys and values of a conversation, each (1, key heads, length, size)."""
    index, place = page_places(np.arange(length))
    return tuple(  # type: ignore[return-value]
        store[np.array(pages)[index], place].transpose(0, 1)[None] for store in (layer.keys, layer.values)
    )


def _carry(layer: PageLayer) -> Tensor:
    key = torch.zeros(1)
    key.rllm_layer = layer  # type: ignore[attr-defined]
    return key


rows_of_any_shape = st.lists(st.tuples(st.integers(1, 400), st.integers(0, 6)), min_size=1, max_size=20)
heads_of_any_kind = st.sampled_from([(4, 2), (4, 1), (6, 2), (3, 3)])


@one_order_of_sums
@settings(max_examples=60, deadline=None)
@given(shape=rows_of_any_shape, heads=heads_of_any_kind, window=st.sampled_from([None, 1, 20, 100]))
def test_decoding_has_the_bits_of_attention_in_blocks(
    shape: list[tuple[int, int]], heads: tuple[int, int], window: int | None
) -> None:
    layer, pages = _layer(heads[1], VALUE_SIZE), _conversations(shape)
    query = torch.randn(len(shape), heads[0], 1, SIZE, generator=torch.Generator().manual_seed(2))
    positions = np.array([length - 1 for length, _ in shape])
    layout = DecodeLayout(pages, positions, window, torch.float32)
    found = layout.attend(query, _carry(layer), query, 0.3)
    for row, (length, _) in enumerate(shape):
        key, value = _of_row(layer, pages[row], length)
        missing = whole_blocks(length) - length
        key, value = pad(key, (0, 0, 0, missing)), pad(value, (0, SIZE - VALUE_SIZE, 0, missing))
        queries = query[row : row + 1].repeat(1, 1, FEWEST_ROWS, 1)
        masks = block_masks(np.full((1, FEWEST_ROWS), length - 1), window, torch.float32)
        expected = attend_to_blocks(queries, key, value, masks, 0.3)[0][0, :, :1, :VALUE_SIZE]
        assert torch.equal(found[row], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 1, 70])
@pytest.mark.parametrize("n_query", [1, 4])
def test_gathered_pages_give_the_same_attention(n_query: int, window: int | None, dtype: torch.dtype) -> None:
    shape = [(200, 3), (190, 3), (150, 2), (33, 0), (4, 0), (64, 1)]
    layer, pages = _layer(2, VALUE_SIZE, dtype), _conversations(shape)
    query = torch.randn(len(shape), 4, n_query, SIZE, generator=torch.Generator().manual_seed(2)).to(dtype)
    positions = np.array([np.arange(length - n_query, length) for length, _ in shape])
    table = torch.tensor([[*each, *[0] * (6 - len(each))] for each in pages])
    layout = GatheredPages(table, torch.from_numpy(positions), window, dtype)
    found = layout.attend(query, _carry(layer), query, 0.3)
    assert found.dtype == dtype
    for row, (length, _) in enumerate(shape):
        key, value = _of_row(layer, pages[row], length)
        keys, queries = np.arange(length), positions[row][:, None]
        visible = torch.from_numpy((keys <= queries) & (keys > queries - (window or length)))
        own = (query[row : row + 1].double(), key.double(), value.double())
        expected = scaled_dot_product_attention(*own, attn_mask=visible, scale=0.3, enable_gqa=True)[0]
        assert_close(
            found[row].float(), expected, [expected.abs().max()], relative=5e-6 if dtype == torch.float32 else 2e-2
        )


@pytest.mark.parametrize("name", ["grouped_model", "qwen_model"])
def test_engine_samples_equal_tokens_on_a_device(
    name: str, request: pytest.FixtureRequest, make_engine: Callable[..., LocalEngine]
) -> None:
    model = request.getfixturevalue(name)
    # Three rows are padded to four, and the cache grows while passes are replayed.
    prompts = [np.random.default_rng(length).integers(6, 70, length).tolist() for length in (150, 20, 3)]
    params = [SamplingParams(max_tokens=70, seed=seed) for seed in range(3)]
    on_device = copy.deepcopy(model).to(pretend_device.register())
    use_torch_attention(on_device)
    engine = make_engine(on_device)

    async def scenario() -> list[Any]:
        calls = zip(prompts, params, "abc", strict=True)
        return await asyncio.gather(*(engine.generate(ids, each, session=session) for ids, each, session in calls))

    for prompt, each, done in zip(prompts, params, asyncio.run(scenario()), strict=True):
        assert_as_without_cache(model, prompt, each, done)


def test_adjacent_pages_are_read_without_a_copy() -> None:
    chosen = np.arange(20)
    adjacent, far = np.arange(5, 15), np.arange(30, 50, 2)
    parts = page_attention._split(np.concatenate((adjacent, far)), chosen)
    numbers = [np.concatenate((adjacent, far))[part] for part in parts]
    assert [part.tolist() for part in numbers] == [adjacent.tolist(), far.tolist()]
    read = [page_attention._adjacent_or_each(part) for part in numbers]
    assert read[0] == slice(5, 15)
    assert isinstance(read[1], Tensor)
    assert read[1].tolist() == far.tolist()
