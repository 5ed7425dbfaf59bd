"""The estimators of `grpo_variants`, and VAPO's lambda, against direct transcriptions of their papers' formulas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from .conftest import call, make_inputs


def standardize(values: Any, ddof: int = 0) -> list[float]:
    values = np.asarray(values, float)
    if len(values) == 1:
        return [float(values[0]) / (1 + 1e-6)]
    return list((values - values.mean()) / (values.std(ddof=ddof) + 1e-6))


def random_groups(seed: int) -> list[list[dict[str, Any]]]:
    random = np.random.default_rng(seed)
    groups = []
    for size in random.integers(1, 6, 4):
        members = []
        for _ in range(size):
            turns = [(1, int(said)) for said in random.integers(1, 5, random.integers(1, 4))]
            members.append(
                {"reward": float(random.normal()), "turns": turns, "steps": random.normal(size=len(turns)).tolist()}
            )
        groups.append(members)
    return groups


def test_grpo_length_is_its_formula() -> None:
    for seed in range(20):
        groups = random_groups(seed)
        expected: list[float] = []
        for group in groups:
            lengths = [sum(said for _, said in member["turns"]) for member in group]
            shortest, longest = min(lengths), max(lengths)
            shaped = []
            for member, length in zip(group, lengths, strict=True):
                bonus = 0.0 if shortest == longest else 0.5 - (length - shortest) / (longest - shortest)
                shaped.append(member["reward"] + 0.3 * (bonus if member["reward"] > 0.2 else min(0.0, bonus)))
            expected += standardize(shaped)
        found = call("grpo_length", make_inputs(groups), weight=0.3, correct_above=0.2)
        np.testing.assert_allclose(found.values, expected, rtol=1e-6, atol=1e-9)


def test_gigpo_is_its_formula() -> None:
    for seed in range(20):
        groups = random_groups(seed)
        random = np.random.default_rng(seed)
        inputs = make_inputs(groups)
        expected: list[float] = []
        for group, made in zip(groups, inputs.groups, strict=True):
            states, returns = [], []
            for member, trajectory in zip(group, made.trajectories, strict=True):
                to_go = 0.0
                later = []
                for reward in reversed(member["steps"]):
                    to_go = reward + 0.9 * to_go
                    later.append(to_go)
                returns += later[::-1]
                for step in trajectory.steps:
                    state = int(random.integers(3))
                    # Both sources of a state.
                    if seed % 2:
                        step.info["state"] = state
                    else:
                        step.messages = [{"role": "user", "content": str(state)}]
                    states.append(state)
            of_episode = standardize([member["reward"] for member in group], ddof=1)
            episodes = np.repeat(of_episode, [len(member["turns"]) for member in group])
            for place, state in enumerate(states):
                equal = [index for index, other in enumerate(states) if other == state]
                compared = 0.0 if len(equal) == 1 else standardize([returns[i] for i in equal], 1)[equal.index(place)]
                expected.append(float(episodes[place]) + 0.7 * compared)
        found = call("gigpo", inputs, gamma=0.9, step_weight=0.7)
        np.testing.assert_allclose(found.values, expected, rtol=1e-6, atol=1e-9)


def test_hierarchical_grpo_compares_solvers_within_their_episode() -> None:
    inputs = make_inputs([[1.0, 0.0, 3.0, 5.0, 4.0], [2.0, 4.0]])
    solvers, proposers = inputs.groups
    solvers.metadata = [{"task_id": "t", "rollout_idx": index} for index in (0, 0, 1, 1, 2)]
    proposers.metadata = [{"task_id": "t", "rollout_idx": index} for index in (0, 1)]
    expected = [*standardize([1, 0]), *standardize([3, 5]), *standardize([4]), *standardize([2, 4])]
    assert call("hierarchical_grpo", inputs).values.tolist() == pytest.approx(expected)


def test_liteppo_divides_all_groups_by_one_deviation() -> None:
    deviation = np.std([1, 0, 3, 3.1], ddof=1) + 1e-4
    expected = np.array([0.5, -0.5, -0.05, 0.05]) / deviation
    assert call("liteppo", make_inputs([[1, 0], [3, 3.1]])).values.tolist() == pytest.approx(expected.tolist())


@pytest.mark.parametrize("alpha", [0.05, 0.5])
def test_gae_adaptive_lambda_depends_on_length(alpha: float) -> None:
    for length in (1, 3, 40):
        inputs = make_inputs([[{"reward": 1.0, "turns": [(2, length)]}]])
        adaptive = call("gae", inputs, lam_alpha=alpha, whiten=False)
        fixed = call("gae", inputs, lam=max(0.0, 1 - 1 / (alpha * length)), whiten=False)
        np.testing.assert_allclose(adaptive.values, fixed.values)


def test_states_of_other_groups_are_not_compared() -> None:
    inputs = make_inputs([[{"reward": 0.0, "steps": [1.0]}], [{"reward": 0.0, "steps": [5.0]}]])
    for group in inputs.groups:
        group.trajectories[0].steps[0].info["state"] = "same"
    assert call("gigpo", replace(inputs)).values.tolist() == [0.0, 0.0]
