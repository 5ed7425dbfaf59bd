"""Prefix trees: every sampled token once, every common prefix computed once, and the gradients of separate rows."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from close import assert_close
from hypothesis import example, given, settings, strategies as st
from local_models import plain_rows, random_batch, sharpen
from transformers import StableLmConfig, StableLmForCausalLM

from rllm_backend_kit.minibatches import sampled_per_row
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_local.exact_attention import FEWEST_ROWS, use_torch_attention
from rllm_local.logprobs import token_outputs
from rllm_local.prefix_trees import ENOUGH_ON_CPU, ROOM, MicroBatch, micro_batches
from rllm_local.settings import TrainingSection
from rllm_local.tree_attention import MOST_KEYS

CPU = torch.device("cpu")
EVERY = 1 << 20
"""Limit of a micro-batch that contains all rows."""


def batch_of(rows: Sequence[Sequence[int]]) -> TokenBatch:
    """Return a batch whose rows have these tokens. All tokens except the first are sampled."""
    trajectories = []
    for row in rows:
        trajectories.append(Trajectory("agent", reward=1.0))
        trajectories[-1].add_step(list(row[:1]), list(row[1:]), [-1.0] * (len(row) - 1))
    return build_batch([TrajectoryGroup(group_id="task:agent", trajectories=trajectories)])


branching_rows = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=12), min_size=1, max_size=10)
"""Rows with three tokens, so that most rows have common prefixes."""


@given(rows=branching_rows, max_tokens=st.integers(4, 60), seed=st.integers(0, 100))
def test_micro_batches_contain_each_sampled_token_once(rows: list[list[int]], max_tokens: int, seed: int) -> None:
    batch = batch_of(rows)
    chosen = np.flatnonzero(np.random.default_rng(seed).random(batch.n_rows) < 0.7)
    seen: list[int] = []
    for part in micro_batches(batch, np.random.default_rng(seed).permutation(chosen), max_tokens, CPU):
        longest = max(len(rows[row]) for row in part.row_ids.tolist()) - 1
        assert part.input_ids.numel() < max(max_tokens, ROOM * longest) + FEWEST_ROWS
        assert part.following[part.entries].tolist() == batch.tokens[part.source].tolist()
        owner = np.searchsorted(batch.row_offsets, part.source, side="right") - 1
        assert part.row_ids.tolist() == owner.tolist()
        visible = _visible_tokens(part)
        for place, source, row in zip(part.places[part.entries].tolist(), part.source, owner, strict=True):
            assert visible[place] == batch.tokens[batch.row_offsets[row] : source].tolist()
        seen += part.source.tolist()
    in_chosen = np.repeat(np.isin(np.arange(batch.n_rows), chosen), batch.row_lengths)
    assert sorted(seen) == np.flatnonzero(batch.loss_mask & in_chosen).tolist()


def _visible_tokens(part: MicroBatch) -> dict[int, list[int]]:
    """Return the tokens that each place of the sequence sees, in the order of their positions."""
    ids, positions = part.input_ids[0].tolist(), part.position_ids[0].tolist()
    seen: dict[int, list[int]] = {}
    for row_ends in part.row_ends:
        for queries, keys in zip(row_ends.queries, row_ends.keys, strict=True):
            for place in queries[queries >= 0].tolist():
                own = keys[: positions[place] + 1].tolist()
                assert place not in seen
                assert [positions[key] for key in own] == list(range(len(own)))
                seen[place] = [ids[key] for key in own]
    return seen


@given(rows=branching_rows)
def test_the_sequence_has_the_nodes_of_a_trie(rows: list[list[int]]) -> None:
    nodes = {tuple(row[:end]) for row in rows for end in range(1, len(row))}
    entries = {tuple(row[:end]) for row in rows for end in range(2, len(row) + 1)}
    (part,) = micro_batches(batch_of(rows), np.arange(len(rows)), EVERY, CPU)
    assert len(_visible_tokens(part)) == len(nodes)
    assert len(part.places) == len(entries)


def _tree(leaves: int, depth: int, turn: int, seed: int) -> list[list[int]]:
    """Return rows of an agent that branches at random turns: each row leaves an earlier row after some turns."""
    draw = np.random.default_rng(seed)
    rows = [draw.integers(0, 70, depth * turn).tolist()]
    while len(rows) < leaves:
        kept = int(draw.integers(1, depth)) * turn
        rows.append(rows[draw.integers(len(rows))][:kept] + draw.integers(0, 70, depth * turn - kept).tolist())
    return rows


@pytest.mark.parametrize("max_tokens", [64, 100])
def test_cuts_repeat_only_the_path_above_a_tree(max_tokens: int) -> None:
    rows = _tree(8, 6, 8, seed=1)
    batch, whole = batch_of(rows), {tuple(row[:end]) for row in rows for end in range(1, len(row))}
    parts = list(micro_batches(batch, np.arange(8), max_tokens, CPU))
    computed = sum(len(_visible_tokens(part)) for part in parts)
    assert len(parts) > 1
    assert computed <= len(whole) + (len(parts) - 1) * 48
    assert computed < sum(len(row) - 1 for row in rows)


def test_a_cut_is_where_rows_share_least() -> None:
    """Eight rows with one prompt do not fit after the first eight, so they stay together."""
    parts = list(micro_batches(random_batch([(50, 3)] * 16, rollouts=8), np.arange(16), 100, CPU))
    assert [part.input_ids.shape[1] for part in parts] == [68, 68]


def test_equal_rows_stay_in_one_tree() -> None:
    """Also if the first of them has more tokens than a micro-batch."""
    (part,) = micro_batches(batch_of([list(range(60))] * 8), np.arange(8), 32, CPU)
    assert len(_visible_tokens(part)) == 59


def test_long_rows_share_their_prefix_beyond_limits() -> None:
    parts = list(micro_batches(random_batch([(1000, 20)] * 8, rollouts=8), np.arange(8), 512, CPU))
    assert [part.input_ids.shape[1] for part in parts] == [1000 + 8 * 19]


def test_unlike_rows_fill_small_micro_batches() -> None:
    parts = list(micro_batches(random_batch([(100, 20)] * 20, rollouts=1), np.arange(20), EVERY, CPU))
    assert all(ENOUGH_ON_CPU <= part.input_ids.shape[1] < ENOUGH_ON_CPU + 120 for part in parts[:-1])


def test_short_prefixes_of_long_rows_are_not_shared() -> None:
    (part,) = micro_batches(batch_of([[1, 2, *[3] * 100], [1, 2, *[4] * 100]]), np.arange(2), EVERY, CPU)
    assert [row_ends.keys.shape[0] for row_ends in part.row_ends] == [2]
    assert len(_visible_tokens(part)) == 202


def test_groups_of_rows_gather_few_keys() -> None:
    """All rows together have 64 times the keys of the prompt."""
    (part,) = micro_batches(random_batch([(1000, 2)] * 64, rollouts=64), np.arange(64), EVERY, CPU)
    assert max(row_ends.keys[:, row_ends.common :].size for row_ends in part.row_ends) <= MOST_KEYS
    assert max(piece.keys.size for row_ends in part.row_ends for piece in row_ends.split()) <= MOST_KEYS


@pytest.fixture(scope="module")
def float64_models() -> list[Any]:
    """The same model with torch's and with exact attention. Its norms compute in float64, unlike Llama's."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    plain = StableLmForCausalLM(StableLmConfig(**sizes, num_hidden_layers=2, vocab_size=79)).double()
    exact = sharpen(copy.deepcopy(plain))
    use_torch_attention(sharpen(plain))
    return [plain, exact]


def _gradients_equal_those_of_rows(model: Any, rows: list[list[int]], max_tokens: int, seed: int) -> None:
    """Compare the gradient of a random sum of the hidden states before each sampled token."""
    batch = batch_of(rows)
    weights = torch.randn(len(batch.tokens), 32, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))

    def gradient(loss: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        loss.backward()
        return torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])

    parts = micro_batches(batch, np.arange(len(rows)), max_tokens, CPU)
    ours = gradient(sum((token_outputs(model, part, 1.0).hidden_states * weights[part.source]).sum() for part in parts))
    expected = gradient(sum((states * weights[place]).sum() for place, _, _, states in plain_rows(model, batch)))
    assert float((ours - expected).norm() / expected.norm()) < 1e-12


def _siblings(seed: int, prompt: int, length: int) -> list[list[int]]:
    """Return rows whose common prompt fills at least half of a block of keys."""
    draw = np.random.default_rng(seed)
    common = draw.integers(0, 70, prompt).tolist()
    return [common + draw.integers(0, 70, length + each).tolist() for each in range(4)]


forests = st.builds(
    lambda sizes, seed: [row for index, size in enumerate(sizes) for row in _tree(*size, seed=seed + index)],
    st.lists(st.tuples(st.integers(1, 5), st.integers(2, 6), st.integers(1, 16)), min_size=1, max_size=4),
    st.integers(0, 1000),
)


@pytest.mark.parametrize("which", [0, 1])
@settings(max_examples=12, deadline=None)
@given(rows=forests, max_tokens=st.sampled_from([40, 150, EVERY]), seed=st.integers(0, 1000))
@example(rows=_siblings(0, 70, 9) + _siblings(1, 40, 30), max_tokens=EVERY, seed=0)
def test_gradients_of_trees_equal_those_of_rows(
    float64_models: list[Any], which: int, rows: list[list[int]], max_tokens: int, seed: int
) -> None:
    _gradients_equal_those_of_rows(float64_models[which], rows, max_tokens, seed)


@pytest.mark.long
@pytest.mark.parametrize("which", [0, 1])
@settings(max_examples=500, deadline=None)
@given(rows=forests, max_tokens=st.sampled_from([40, 150, EVERY]), seed=st.integers(0, 1000))
def test_gradients_of_many_trees_equal_those_of_rows(
    float64_models: list[Any], which: int, rows: list[list[int]], max_tokens: int, seed: int
) -> None:
    _gradients_equal_those_of_rows(float64_models[which], rows, max_tokens, seed)


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
    (part,) = micro_batches(batch, np.arange(2), EVERY, CPU)
    assert part.input_ids[0, :9].tolist() == [1, 2, 3, 4, 5, 6, 9, 8, 8]
    assert part.position_ids[0, :9].tolist() == [0, 1, 2, 3, 4, 5, 1, 2, 3]
    assert part.following[part.entries].tolist() == [4, 5, 7, 8, 8, 8]


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


@pytest.mark.parametrize("length", [1, 4, 31, 33, 64, 150])
def test_exact_outputs_equal_those_of_torch(grouped_model: Any, length: int) -> None:
    plain = copy.deepcopy(grouped_model)
    use_torch_attention(plain)
    batch = random_batch([(length, 2), (length, 40)], rollouts=2)
    (part,) = micro_batches(batch, np.arange(2), EVERY, CPU)
    with torch.no_grad():
        found, expected = (token_outputs(model, part, 1.0).logprobs for model in (grouped_model, plain))
    assert_close(found, expected, [expected.abs().max()], relative=5e-6)
