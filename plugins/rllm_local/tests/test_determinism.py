"""Effects of the other rows of a pass on the samples of a row."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_local import determinism, tiny
from rllm_local.determinism import (
    BLOCK,
    PARTS,
    STEP,
    find_fewest_rows,
    fix_order_of_sums,
    fold_last_product,
    positions_to_read,
)
from rllm_local.engine import LocalEngine
from rllm_local.kv_cache import PassShape

VOCABULARY = 70
OWN_SEED = 99
Requests = list[tuple[int, int, int]]
"""Requests: the prompt's length, the number of tokens, and the start in iterations of the event loop."""


def test_positions_are_read_in_steps_or_whole_parts() -> None:
    last = 0
    for length in range(1, 1200):
        read = positions_to_read(length)
        assert positions_to_read(read) == read >= last
        last = read
        assert length <= read < length + 192 + STEP
        assert read % STEP == 0
        assert read % BLOCK <= PARTS[0] or read % BLOCK in PARTS


def test_a_setting_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    fix_order_of_sums()
    assert os.environ["MKL_CBWR"] == "COMPATIBLE"


def test_the_last_product_gets_rows_without_gaps() -> None:
    model: Any = tiny.build_model(70, 0)
    fold_last_product(model)
    seen: list[bool] = []
    model.lm_head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].is_contiguous()))
    with torch.inference_mode():
        model(input_ids=torch.ones(4, 3, dtype=torch.int64), logits_to_keep=1)
    assert seen == [True]


def test_fewest_rows_sums_depend_on_rows_none(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(determinism, "_products_agree", lambda *_: False)
    assert find_fewest_rows(model) is None


def test_fewest_rows_is_the_first_that_agrees(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for check in ("_products_agree", "_attention_agrees", "_passes_agree"):
        monkeypatch.setattr(determinism, check, lambda _, fewest: fewest >= 8)
    assert find_fewest_rows(model) == 8


@pytest.fixture(scope="module", params=["model", "grouped_model", "qwen_model"])
def invariant(request: pytest.FixtureRequest) -> tuple[Any, PassShape]:
    """A model as batch-invariant runs have it, and the shape of their passes on this processor."""
    model = copy.deepcopy(request.getfixturevalue(request.param))
    fold_last_product(model)
    fewest = find_fewest_rows(model)
    if fewest is None:
        pytest.skip("this processor's products have no order of sums that passes could fix")
    return model, PassShape(fewest, positions_to_read)


def _ids(length: int, seed: int) -> list[int]:
    return np.random.default_rng((seed, length)).integers(6, VOCABULARY, length).tolist()


async def _response(engine: LocalEngine, length: int, count: int, turns: int, seed: int) -> Completion:
    for _ in range(turns):
        await asyncio.sleep(0)
    sampling = SamplingParams(max_tokens=count, seed=seed)
    return await engine.generate(_ids(length, seed), sampling, session=str(seed))


def _own_response(engine: LocalEngine, own: tuple[int, int], others: Requests) -> list[Any]:
    async def gather_all() -> Completion:
        calls = [_response(engine, *other, seed) for seed, other in enumerate(others)]
        done = await asyncio.gather(_response(engine, *own, 3, OWN_SEED), *calls)
        return done[0]

    done = asyncio.run(gather_all())
    return [done.token_ids.tolist(), done.logprobs.tolist()]


@settings(max_examples=6, deadline=None)
@given(
    own=st.tuples(st.integers(1, 210), st.integers(1, 12)),
    others=st.lists(st.tuples(st.integers(1, 220), st.integers(1, 20), st.integers(0, 60)), min_size=1, max_size=9),
)
def test_a_batched_response_equals_a_single_one(
    make_engine: Callable[..., LocalEngine], invariant: tuple[Any, PassShape], own: tuple[int, int], others: Requests
) -> None:
    model, shape = invariant
    separate = _own_response(make_engine(model, max_context=256, shape=shape), own, [])
    assert _own_response(make_engine(model, max_context=256, shape=shape), own, others) == separate


def test_a_conversation_has_the_bits_of_one_prompt(
    make_engine: Callable[..., LocalEngine], invariant: tuple[Any, PassShape]
) -> None:
    """The cache and the number of passes also change no bit."""
    model, shape = invariant
    prompt = _ids(70, 0)

    async def turns(lengths: list[int]) -> list[Any]:
        engine = make_engine(model, max_context=256, shape=shape)
        for length in lengths:
            done = await engine.generate(prompt[:length], SamplingParams(max_tokens=3, seed=1), session="s")
        return [done.token_ids.tolist(), done.logprobs.tolist()]

    assert asyncio.run(turns([1, 2, 35, 36, 69, 70])) == asyncio.run(turns([70]))
