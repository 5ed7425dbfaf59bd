"""Which slots a pass reads: those that it needs, and no copy where a few more cost less."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rllm_local.kv_cache import CacheView, Copy, SlotCache


def _view(slots: list[int], queries: int = 1) -> CacheView:
    cache = SlotCache(layers=1, slots=16, positions=8)
    return cache.select(np.array(slots), np.zeros((len(slots), queries), np.int64), 4, torch.device("cpu"))


@pytest.mark.parametrize(
    ("slots", "read", "rows"),
    [
        ([0, 1, 2], slice(0, 3), None),
        ([4, 5], slice(4, 6), None),
        ([2, 4, 5], slice(2, 6), [0, 2, 3]),
        ([5, 4], slice(4, 6), [1, 0]),
    ],
)
def test_neighboring_slots_are_read_as_they_are(slots: list[int], read: slice, rows: list[int] | None) -> None:
    view = _view(slots)
    assert view.slots == read
    assert (view.rows if view.rows is None else view.rows.tolist()) == rows


@pytest.mark.parametrize(("slots", "queries"), [([0, 9], 1), ([2, 4, 5], 3)], ids=["far apart", "several queries"])
def test_other_slots_are_copied_one_by_one(slots: list[int], queries: int) -> None:
    view = _view(slots, queries)
    assert isinstance(view.slots, torch.Tensor)
    assert view.slots.tolist() == slots
    assert view.rows is None


def test_copies_of_first_positions_run_in_order() -> None:
    cache = SlotCache(layers=2, slots=4, positions=3)
    for number, layer in enumerate(cache.layers):
        layer.lazy_initialization(torch.zeros(1, 2, 1, 5), torch.zeros(1, 2, 1, 5))
        layer.keys[0], layer.values[0] = number + 1, -number - 1
    cache.copy([Copy(0, [1, 3], 2), Copy(3, [2], 1)])
    for number, layer in enumerate(cache.layers):
        assert layer.keys[:4, :, 0, 0].tolist() == [
            [number + 1] * 3,
            [number + 1] * 2 + [0],
            [number + 1, 0, 0],
            [number + 1] * 2 + [0],
        ]
        assert torch.equal(layer.values, -layer.keys)
