"""otb and tir_otb: against a loop over groups, positions and members, and by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rllm_core.contracts.estimator import AdvantageInput
from rllm_core.errors import AdvantageError

from .conftest import call, make_inputs

EPSILON = 1e-8


def correction(inputs: AdvantageInput, tokens: list[int], mode: str | None, cap: float) -> list[float]:
    assert inputs.old_logprobs is not None
    assert inputs.sampling_logprobs is not None
    ratios = [float(inputs.old_logprobs[token]) - float(inputs.sampling_logprobs[token]) for token in tokens]
    if mode == "sequence":
        ratios = [sum(ratios)] * len(ratios)
    return [1.0 if mode is None else min(float(np.exp(ratio)), cap) for ratio in ratios]


def naive(inputs: AdvantageInput, *, over_sampled: bool, mode: str | None = None, cap: float = 2.0) -> list[float]:
    """As the formulas are written, with dictionaries by position."""
    assert inputs.old_logprobs is not None
    assert inputs.sum_pi_squared is not None
    advantages = [0.0] * len(inputs.loss_mask)
    for start, end in zip(inputs.group_offsets, inputs.group_offsets[1:], strict=False):
        members = []
        for trajectory in range(start, end):
            span = range(*inputs.token_offsets[trajectory : trajectory + 2])
            tokens = [token for token in span if inputs.loss_mask[token]]
            ratios = correction(inputs, tokens, mode, cap)
            weight, weights = 0.0, []
            for token, ratio in zip(tokens, ratios, strict=True):
                probability = float(np.exp(float(inputs.old_logprobs[token])))
                weight += (1 - 2 * probability + float(inputs.sum_pi_squared[token])) * ratio**2
                weights.append(weight)
            positions = list(range(len(tokens))) if over_sampled else [token - tokens[0] for token in tokens]
            members.append((tokens, positions, weights, float(inputs.rewards[trajectory])))
        lengths = sorted([0, *(len(tokens) for tokens, *_ in members)])
        for tokens, positions, _, reward in members:
            is_longest = len(tokens) == lengths[-1] > lengths[-2]
            for token, position in zip(tokens, positions, strict=True):
                found = [
                    (w, r)
                    for _, others, ws, r in members
                    for other, w in zip(others, ws, strict=True)
                    if other == position
                ]
                baseline = sum(w * r for w, r in found) / (sum(w for w, _ in found) + EPSILON)
                if is_longest and position >= lengths[-2]:
                    baseline = 0.0
                advantages[token] = reward - baseline
    return advantages


REWARD = st.integers(-80, 80).map(lambda eighths: eighths / 8)
TURNS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), max_size=3)
GROUPS = st.lists(st.lists(st.fixed_dictionaries({"reward": REWARD, "turns": TURNS}), max_size=4), max_size=4)
NAMES = pytest.mark.parametrize("name", ["otb", "tir_otb"])


@NAMES
@given(groups=GROUPS, mode=st.sampled_from([None, "token", "sequence"]), cap=st.sampled_from([0.5, 1.2, 2.0]))
def test_advantages_are_those_of_a_loop_over_positions(name: str, groups: Any, mode: str | None, cap: float) -> None:
    inputs = make_inputs(groups)
    result = call(name, inputs, tis_mode=mode, tis_cap=cap)
    expected = naive(inputs, over_sampled=name == "tir_otb", mode=mode, cap=cap)
    assert result.level == "token"
    assert result.values.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-5)


@NAMES
@pytest.mark.parametrize("rewards", [[1.0, 0.0], [0.0, 1.0]])
def test_certain_tokens_have_weight_0_without_a_division(name: str, rewards: list[float]) -> None:
    inputs = make_inputs([rewards])
    sure = np.zeros(len(inputs.loss_mask), np.float32)
    # In float32 the squared length can come out a little below 0.
    values = call(name, replace(inputs, old_logprobs=sure, sum_pi_squared=sure + 1 - 1e-7)).values
    assert values[inputs.loss_mask].tolist() == np.repeat(rewards, 2).tolist()


@NAMES
@pytest.mark.parametrize(
    ("column", "options"), [("old_logprobs", {}), ("sum_pi_squared", {}), ("sampling_logprobs", {"tis_mode": "token"})]
)
def test_a_column_that_is_not_there_is_named(name: str, column: str, options: Any) -> None:
    with pytest.raises(AdvantageError, match=f"needs `{column}`"):
        call(name, replace(make_inputs([[1, 0]]), **{column: None}), **options)


@NAMES
def test_huge_ratio_is_capped_before_it_overflows(name: str) -> None:
    inputs = make_inputs([[1.0, 0.0]])
    far = replace(inputs, sampling_logprobs=np.full(len(inputs.loss_mask), -5000, np.float32))
    for mode in ("token", "sequence"):
        assert np.isfinite(call(name, far, tis_mode=mode).values).all()
