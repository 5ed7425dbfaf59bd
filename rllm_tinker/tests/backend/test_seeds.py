"""Several seeds travel in one number, and a server tells it from a plain one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from rllm_tinker.seeds import MOST, cut, seed_of_request, seeds_in

seeds = st.integers(0, 2**63 - 1)


@given(st.lists(seeds, min_size=2, max_size=MOST))
def test_seeds_come_out_as_they_went_in(given_seeds: list[int]) -> None:
    number = json.loads(json.dumps(seed_of_request(given_seeds)))
    assert seeds_in(number, len(given_seeds)) == [cut(seed) for seed in given_seeds]


@given(seeds, st.integers(1, MOST))
def test_a_plain_seed_is_not_taken_for_several(seed: int, count: int) -> None:
    assert seeds_in(seed, count) is None


@given(seeds)
def test_one_sample_has_a_plain_seed_of_31_bits(seed: int) -> None:
    assert 0 <= seed_of_request([seed]) < 2**31


@pytest.mark.parametrize("count", [0, MOST + 1])
def test_no_seeds_and_too_many_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} seeds"):
        seed_of_request([1] * count)
