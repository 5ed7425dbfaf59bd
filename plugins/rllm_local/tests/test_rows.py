"""Micro-batches: every sampled token exactly once, in its place, with bounded padding."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from local_models import random_batch

from rllm_backend_kit.minibatches import sampled_per_row
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_local.exact_attention import use_torch_attention
from rllm_local.logprobs import token_outputs
from rllm_local.rows import MicroBatch, micro_batches
from rllm_local.settings import TrainingSection

CPU = torch.device("cpu")

turns = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5)), min_size=1, max_size=4)
trajectories = st.lists(turns.map(lambda some: [(some[0][0] + 1, some[0][1]), *some[1:]]), min_size=1, max_size=8)


@given(lengths=trajectories, rollouts=st.integers(1, 4), max_tokens=st.integers(1, 80), seed=st.integers(0, 100))
def test_micro_batches_contain_each_sampled_token_once(
    lengths: list[list[tuple[int, int]]], rollouts: int, max_tokens: int, seed: int
) -> None:
    batch = random_batch(lengths, rollouts=rollouts)
    chosen = np.flatnonzero(np.random.default_rng(seed).random(batch.n_rows) < 0.7)
    rows = np.random.default_rng(seed).permutation(chosen)
    seen: list[int] = []
    for part in micro_batches(batch, rows, max_tokens, CPU):
        n_sequence, width = part.input_ids.shape
        assert n_sequence * width <= max_tokens or len(part.row_ids.unique()) == 1
        assert part.targets.tolist() == batch.tokens[part.source].tolist()
        owner = np.searchsorted(batch.row_offsets, part.source, side="right") - 1
        assert part.row_ids.tolist() == owner.tolist()
        sequences, columns = (each.tolist() for each in part.places)
        for sequence, column, source in zip(sequences, part.columns[columns].tolist(), part.source, strict=True):
            tokens, positions = _seen_from(part, sequence, column)
            start = batch.row_offsets[np.searchsorted(batch.row_offsets, source, side="right") - 1]
            assert positions == list(range(source - start))
            assert tokens == batch.tokens[start:source].tolist()
        seen += part.source.tolist()
    in_chosen = np.repeat(np.isin(np.arange(batch.n_rows), chosen), batch.row_lengths)
    assert sorted(seen) == np.flatnonzero(batch.loss_mask & in_chosen).tolist()


def _seen_from(part: MicroBatch, sequence: int, column: int) -> tuple[list[int], list[int]]:
    """Tokens and their positions that a place of the micro-batch sees, in the order of positions."""
    if part.attention_mask is None or part.position_ids is None:
        return part.input_ids[sequence, : column + 1].tolist(), list(range(column + 1))
    visible = part.attention_mask[sequence, 0, column]
    tokens, positions = part.input_ids[sequence, visible].tolist(), part.position_ids[sequence, visible].tolist()
    order = sorted(range(len(positions)), key=positions.__getitem__)
    return [tokens[place] for place in order], [positions[place] for place in order]


def test_rollouts_at_a_task_are_one_sequence() -> None:
    batch = random_batch([(50, 3)] * 16, rollouts=8)
    (part,) = micro_batches(batch, np.arange(16), 1000, CPU)
    assert part.input_ids.shape == (2, 50 + 8 * 2 + 2)


def test_rollouts_much_longer_than_prompt_are_not_packed() -> None:
    batch = random_batch([(10, 500)] * 4, rollouts=4)
    (part,) = micro_batches(batch, np.arange(4), 10_000, CPU)
    assert part.input_ids.shape == (4, 512)
    assert part.attention_mask is None


def test_rows_are_packed_with_rows_of_similar_length() -> None:
    lengths = np.random.default_rng(0).integers(2, 400, 200)
    batch = random_batch([(int(length) - 1, 1) for length in lengths])
    padded = sum(part.input_ids.numel() for part in micro_batches(batch, np.arange(200), 2000, CPU))
    assert padded < 1.15 * (lengths - 1).sum()


def test_a_longer_row_begins_its_own_micro_batch() -> None:
    batch = random_batch([(19, 1)] * 100 + [(199, 1)] * 2)
    parts = [tuple(part.input_ids.shape) for part in micro_batches(batch, np.arange(102), 100_000, CPU)]
    assert parts == [(100, 20), (2, 200)]


def test_cpu_micro_batches_are_smaller_by_default() -> None:
    assert TrainingSection().tokens_per_microbatch("cpu") < TrainingSection().tokens_per_microbatch("cuda")
    asked = TrainingSection(max_tokens_per_microbatch=100_000)
    assert asked.tokens_per_microbatch("cpu") == asked.tokens_per_microbatch("cuda") == 100_000


def test_a_rewritten_history_gives_separate_rows() -> None:
    trajectory = Trajectory("agent", reward=1.0)
    trajectory.add_step([1, 2, 3], [4, 5], [-1.0, -2.0])
    trajectory.add_step([1, 2, 3, 4, 5, 6], [7], [-3.0])
    trajectory.add_step([1, 9], [8, 8, 8], [-4.0, -5.0, -6.0])
    batch = build_batch([TrajectoryGroup(group_id="t:agent", trajectories=[trajectory])])
    assert sampled_per_row(batch).tolist() == [3, 3]
    (short,), (long,) = ([part] for part in micro_batches(batch, np.arange(2), 7, CPU))
    assert short.input_ids.tolist() == [[1, 9, 8, 8]]
    assert short.targets.tolist() == [8, 8, 8]
    assert long.input_ids[:, :6].tolist() == [[1, 2, 3, 4, 5, 6]]
    assert long.targets.tolist() == [4, 5, 7]
    assert long.columns.tolist() == [2, 3, 5]


@pytest.mark.parametrize("length", [1, 5])
def test_rows_without_a_sampled_token_are_left_out(length: int) -> None:
    batch = random_batch([(length, 1), (1, 2)])
    batch = replace(batch, loss_mask=batch.loss_mask & np.repeat([False, True], batch.row_lengths))
    (part,) = micro_batches(batch, np.arange(2), 1, CPU)
    assert part.row_ids.tolist() == [1, 1]
    assert list(micro_batches(batch, np.array([0]), 100, CPU)) == []


def test_sampled_tokens_are_counted_in_empty_rows_too() -> None:
    mask = np.array([0, 1, 1, 0, 1], np.bool_)
    batch: Any = SimpleNamespace(loss_mask=mask, row_offsets=np.array([0, 0, 3, 3, 5, 5]), n_rows=5)
    assert sampled_per_row(batch).tolist() == [0, 2, 0, 1, 0]


def test_mask_of_packed_rows_is_stored_once(grouped_model: Any) -> None:
    plain = copy.deepcopy(grouped_model)
    use_torch_attention(plain)
    (part,) = micro_batches(random_batch([(60, 3)] * 8, rollouts=8), np.arange(8), 1000, CPU)
    width = part.input_ids.shape[1]
    masks: set[int] = set()

    def note(kept: torch.Tensor) -> torch.Tensor:
        if kept.shape[-2:] == (width, width):
            masks.add(kept.untyped_storage().data_ptr())
        return kept

    with torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept):
        outputs = token_outputs(plain, part, 1.0)
    assert outputs.logprobs.requires_grad
    assert len(masks) == 1
