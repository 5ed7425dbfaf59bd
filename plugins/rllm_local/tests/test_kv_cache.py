"""The tensors of pages: growth, copies and new tokens."""

from __future__ import annotations

import torch
from transformers import LlamaConfig

from rllm_local.exact_attention import BLOCK
from rllm_local.kv_cache import Copy, PageCache, layer_of

CONFIG = LlamaConfig(num_hidden_layers=2)


def _write(cache: PageCache, page: int, number: float, copies: list[Copy], clear: list[int]) -> None:
    """Write one token to the first position of a page of each layer."""
    highest = max([page, *(copy.target for copy in copies)])
    cache.prepare(highest, copies, clear, torch.device("cpu"))
    cache.write_to(torch.tensor([page * BLOCK]))
    for layer, _ in enumerate(cache.layers):
        states = torch.full((1, 2, 1, 5), number + layer)
        key, value = cache.update(states.clone(), -states[..., :3], layer)
        assert torch.equal(key, states)
        assert torch.equal(value, -states[..., :3])
        assert layer_of(key) is cache.layers[layer]


def test_growth_keeps_the_written_pages() -> None:
    cache = PageCache(CONFIG, limit=100)
    sizes = []
    for page in (1, 3, 4, 100):
        _write(cache, page, page, [], [page])
        sizes.append(cache.pages)
    assert sizes == [2, 4, 6, 101]
    for number, layer in enumerate(cache.layers):
        assert layer.keys.shape == (101, BLOCK, 2, 5)
        assert layer.values.shape == (101, BLOCK, 2, 3)
        for page in (1, 3, 4, 100):
            assert layer.keys[page, :2, 0, 0].tolist() == [page + number, 0]
            assert layer.values[page, :2, 1, 2].tolist() == [-page - number, 0]


def test_pages_are_copied_before_tokens_are_written() -> None:
    cache = PageCache(CONFIG, limit=9)
    _write(cache, 1, 5, [], [1])
    _write(cache, 2, 7, [Copy(1, 2), Copy(1, 3)], [])
    for number, layer in enumerate(cache.layers):
        assert layer.keys[1:4, 0, 0, 0].tolist() == [5 + number, 7 + number, 5 + number]
