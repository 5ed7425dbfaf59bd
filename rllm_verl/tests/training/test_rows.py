"""From rows of a batch to nested tensors and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rllm_core.data.batch import TokenBatch
from rllm_core.errors import BackendError
from rllm_verl.rows import PADDING, MicroBatching, ShardedRows

from .conftest import random_batch

TURNS = [[(5, 3), (2, 4)], [(1, 1)], [(30, 12), (1, 1), (4, 6)], [(3, 2), (2, 5)], [(8, 25)]]
ALL = np.arange(len(TURNS))


def _deal(batch: TokenBatch, ranks: int = 1, rows: np.ndarray = ALL, **micro: int) -> ShardedRows:
    return ShardedRows.from_batch(batch, rows, ranks, MicroBatching(**micro))


def _without_tail(batch: TokenBatch, row: int) -> TokenBatch:
    """The last three tokens of a row are not sampled."""
    mask = batch.loss_mask.copy()
    mask[batch.row_offsets[row + 1] - 3 : batch.row_offsets[row + 1]] = False
    return batch.with_columns(loss_mask=mask)


def test_every_row_stands_there_whole_with_its_columns() -> None:
    batch = random_batch(TURNS, roles=("solver", "judge"))
    dealt = _deal(batch)
    data = dealt.tensordict({"advantages": batch.advantages}, temperature=0.5)
    assert sorted(data["row"].tolist()) == ALL.tolist()
    assert data["temperature"] == 0.5
    rows = zip(*(data[name].unbind() for name in ("input_ids", "position_ids", "loss_mask", "advantages")), strict=True)
    for row, role, (ids, positions, mask, advantages) in zip(data["row"], data["role"], rows, strict=True):
        span = slice(batch.row_offsets[row], batch.row_offsets[row + 1])
        assert ids.tolist() == batch.tokens[span].tolist()
        assert positions.tolist() == list(range(len(ids)))
        assert mask.tolist() == batch.loss_mask[span].tolist()
        assert advantages.tolist() == batch.advantages[span].tolist()
        assert role == batch.role[row]


def test_engine_values_go_to_the_next_token() -> None:
    batch = random_batch(TURNS)
    dealt = _deal(batch, 2)
    said = dealt.tensordict({})["input_ids"].float() * 10
    column = dealt.column(said)
    before = np.concatenate(([0], batch.tokens[:-1])) * 10
    assert column.tolist() == np.where(batch.loss_mask, before, 0).tolist()


def test_a_row_ends_at_its_last_sampled_token() -> None:
    batch = _without_tail(random_batch(TURNS), 4)
    assert batch.row_lengths[4] == 33
    dealt = _deal(batch, rows=np.array([4]))
    assert len(dealt.source) == 30
    assert dealt.sampled.sum() == 22


def test_rows_without_a_sampled_token_are_left_out() -> None:
    batch = random_batch(TURNS)
    mask = batch.loss_mask.copy()
    mask[batch.row_offsets[1] : batch.row_offsets[3]] = False
    batch = batch.with_columns(loss_mask=mask)
    assert sorted(_deal(batch).rows.tolist()) == [0, 3, 4]
    assert len(_deal(batch, 4, np.array([1, 2]))) == 0


@pytest.mark.parametrize(("ranks", "rows", "expected"), [(1, 1, 5), (2, 1, 6), (2, 4, 8), (1, 3, 6), (8, 1, 8)])
def test_one_token_rows_pad_micro_batches_on_ranks(ranks: int, rows: int, expected: int) -> None:
    dealt = ShardedRows.from_batch(random_batch(TURNS), ALL, ranks, MicroBatching(rows=rows))
    padding = dealt.rows == PADDING
    assert len(dealt) == expected
    assert sorted(dealt.rows[~padding].tolist()) == ALL.tolist()
    assert (np.diff(dealt.offsets)[padding] == 1).all()
    data = dealt.tensordict({})
    of_padding = torch.from_numpy(padding).repeat_interleave(data["input_ids"].offsets().diff())
    assert not data["loss_mask"].values()[of_padding].any()


def test_ranks_are_given_about_equally_many_tokens() -> None:
    lengths = np.random.default_rng(0).integers(5, 60, 64)
    dealt = _deal(random_batch([[(2, int(length))] for length in lengths]), 4, np.arange(64))
    of_ranks = np.add.reduceat(np.diff(dealt.offsets), range(0, 64, 16))
    assert of_ranks.max() - of_ranks.min() < 60


def test_row_above_micro_batch_names_the_key() -> None:
    with pytest.raises(BackendError, match=r"(?s)54 tokens, .* 53\..*ppo_max_token_len_per_gpu"):
        _deal(random_batch(TURNS), max_tokens=53)
    assert len(_deal(random_batch(TURNS), max_tokens=54)) == 5
