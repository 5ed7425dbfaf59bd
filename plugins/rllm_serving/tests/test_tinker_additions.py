"""One number contains several seeds, and a server distinguishes it from a plain seed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from rllm_serving.tinker_additions import MAX_SEEDS, pack_seeds, truncate_seed, unpack_seeds

seeds = st.integers(0, 2**63 - 1)


@given(st.lists(seeds, min_size=2, max_size=MAX_SEEDS))
def test_unpacked_seeds_equal_the_packed_seeds(given_seeds: list[int]) -> None:
    number = json.loads(json.dumps(pack_seeds(given_seeds)))
    assert unpack_seeds(number, len(given_seeds)) == [truncate_seed(seed) for seed in given_seeds]


@given(seeds, st.integers(1, MAX_SEEDS))
def test_a_plain_seed_is_not_unpacked(seed: int, count: int) -> None:
    assert unpack_seeds(seed, count) is None


@given(seeds)
def test_a_single_seed_has_31_bits(seed: int) -> None:
    assert 0 <= pack_seeds([seed]) < 2**31


@pytest.mark.parametrize("count", [0, MAX_SEEDS + 1])
def test_no_seeds_and_too_many_raise_an_error(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} seeds"):
        pack_seeds([1] * count)
