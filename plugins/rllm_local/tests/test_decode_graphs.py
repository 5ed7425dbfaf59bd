"""Graphs of decode passes on a simulated device: padding, replays, and passes that cannot be captured."""

from __future__ import annotations

import numpy as np
import pretend_device
import pytest
import torch
from torch import Tensor

from rllm_local.decode_graphs import LIMIT, DecodeGraphs, PassArrays


def _arrays(n_row: int, n_page: int, start: int = 0) -> PassArrays:
    numbers = np.arange(start, start + n_row)
    return PassArrays(numbers[:, None], numbers[:, None] + 1, numbers, np.ones((n_row, n_page), np.int64))


def _forward(ids: Tensor, positions: Tensor, places: Tensor, table: Tensor) -> tuple[Tensor, object]:
    return (ids * positions + places[:, None] + table.sum(1, keepdim=True))[..., None].float(), None


@pytest.mark.parametrize(("n_row", "n_page"), [(1, 1), (3, 3), (8, 4), (11, 5)])
def test_replay_computes_the_new_inputs(n_row: int, n_page: int) -> None:
    graphs = DecodeGraphs(pretend_device.register())
    assert graphs.compute(_forward, _arrays(n_row, n_page)) is None
    for start in (5, 9):
        arrays = _arrays(n_row, n_page, start)
        with pretend_device.count() as counts:
            found = graphs.compute(_forward, arrays)
        assert found is not None
        expected = arrays.ids * arrays.positions + arrays.places[:, None] + arrays.table.sum(1, keepdims=True)
        assert found.shape == (n_row, 1, 1)
        assert found[..., 0].cpu().tolist() == expected.tolist()
    assert counts.launches == counts.kernels["replay of a graph"] == 1


def test_padded_shapes_share_a_graph() -> None:
    graphs = DecodeGraphs(pretend_device.register())
    graphs.compute(_forward, _arrays(15, 7))
    assert graphs.compute(_forward, _arrays(10, 5)) is not None


def test_other_shapes_are_not_captured_beyond_the_limit() -> None:
    graphs = DecodeGraphs(pretend_device.register())
    for n_row in range(8, 8 * (LIMIT + 2), 8):
        for _ in range(2):
            found = graphs.compute(_forward, _arrays(n_row, 1))
        assert (found is None) == (n_row > 8 * LIMIT)


def test_cleared_graphs_are_captured_again() -> None:
    graphs = DecodeGraphs(pretend_device.register())
    for _ in range(2):
        assert graphs.compute(_forward, _arrays(4, 1)) is None
        assert graphs.compute(_forward, _arrays(4, 1)) is not None
        graphs.clear()


def test_pass_that_waits_is_never_captured(caplog: pytest.LogCaptureFixture) -> None:
    def forward(ids: Tensor, *others: Tensor) -> tuple[Tensor, object]:
        return ids[..., None] * int(ids.sum()), None

    graphs = DecodeGraphs(pretend_device.register())
    for _ in range(4):
        assert graphs.compute(forward, _arrays(4, 1)) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot be captured" in caplog.text


def test_cpu_has_no_graphs() -> None:
    graphs = DecodeGraphs(torch.device("cpu"))
    assert [graphs.compute(_forward, _arrays(4, 1)) for _ in range(3)] == [None] * 3
