"""gdpo in both dialects: against loops, by hand, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rllm_core.errors import AdvantageError

from .conftest import call, make_inputs

EPSILON = 1e-6


def within_group(group: list[float]) -> list[float]:
    if len(group) == 1:
        return [group[0] / (1 + EPSILON)]
    return [(reward - np.mean(group)) / (np.std(group, ddof=1) + EPSILON) for reward in group]


def compare_to_others(group: list[float]) -> list[float]:
    values = []
    for index, reward in enumerate(group):
        others = group[:index] + group[index + 1 :]
        distance = reward - np.mean(others) if others else 0.0
        deviation = np.std(others, ddof=1) if len(set(others)) > 1 else 0.0
        values.append(distance / (deviation + EPSILON) if deviation else distance)
    return values


def summed(groups: list[Any], standardize: Any, weights: tuple[float, float]) -> list[float]:
    values = []
    for group in groups:
        columns = [standardize([member[k] for member in group]) if group else [] for k in range(2)]
        values += [weights[0] * a + weights[1] * b for a, b in zip(*columns, strict=True)]
    return values


def naive_verl(groups: list[Any], weights: tuple[float, float]) -> list[float]:
    values = summed(groups, within_group, weights)
    lengths = [member[2] for group in groups for member in group]
    tokens = np.repeat(values, lengths)
    if len(tokens) < 2 or np.ptp(tokens) == 0:
        return [0.0] * len(values)
    return [(value - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8) for value in values]


def naive_nemo(groups: list[Any], weights: tuple[float, float]) -> list[float]:
    values = np.round(summed(groups, compare_to_others, weights), 10)
    if len(values) < 2 or np.ptp(values) == 0:
        return [0.0] * len(values)
    return ((values - values.mean()) / values.std(ddof=1)).tolist()


REWARD = st.integers(-16, 16).map(lambda eighths: eighths / 8)
GROUPS = st.lists(st.lists(st.tuples(REWARD, REWARD, st.integers(0, 3)), max_size=6), max_size=5)


def members(groups: list[Any]) -> list[Any]:
    return [
        [
            {"reward": a + b, "parts": {"correct": a, "format": b}, "turns": [(1, length)] if length else []}
            for a, b, length in group
        ]
        for group in groups
    ]


@pytest.mark.parametrize(("dialect", "naive"), [("verl", naive_verl), ("nemo", naive_nemo)])
@given(groups=GROUPS, weight=st.sampled_from([0.0, 0.5, 3.0]))
def test_ragged_groups_equal_a_loop_over_groups(dialect: str, naive: Any, groups: Any, weight: float) -> None:
    result = call("gdpo", make_inputs(members(groups)), dialect=dialect, weights={"format": weight})
    expected = naive(groups, (1.0, weight))
    assert np.isfinite(result.values).all()
    if any(expected):
        assert result.values.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)
    else:
        assert np.abs(result.values).max(initial=0.0) < 1e-6


def test_no_components_say_what_the_workflow_must_do() -> None:
    with pytest.raises(AdvantageError, match=r'trajectory.info\["reward_components"\] = '):
        call("gdpo", make_inputs([[1, 0]]))


def test_weight_without_component_is_an_error_with_names() -> None:
    inputs = make_inputs(members([[(1, 0, 2), (0, 0, 2)]]))
    with pytest.raises(AdvantageError, match=r"(?s)'formt'.*'format'"):
        call("gdpo", inputs, weights={"formt": 1.0})
    with pytest.raises(AdvantageError, match=r"(?s)'x'.*correct, format"):
        call("gdpo", inputs, weights={"x": 1.0})


def test_a_component_that_is_no_number_is_named() -> None:
    inputs = make_inputs(members([[(1, 0, 2)], [(0, 0, 2), (float("nan"), 0, 2)]]))
    with pytest.raises(AdvantageError, match="component 'correct' of trajectory 1 in group 't1:agent' is nan"):
        call("gdpo", inputs)
