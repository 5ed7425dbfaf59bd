"""What holds for every estimator, of any groups that hypothesis finds: order, scope, exact zeros, finiteness.

The contract (`tests/contract/test_estimators.py`) holds them to extreme rewards, to nothing at all, to linear time and
to leaving their inputs alone; `tests/conformance/test_cases.py` to their scope.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from rllm_core.algorithms.estimation import to_tokens
from rllm_estimators.plugin import rllm_estimators

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{record.name: (record.name, {}) for record in rllm_estimators()},
    "dr_grpo_trl": ("dr_grpo", {"dialect": "trl"}),
    "gae_adaptive": ("gae", {"lam_alpha": 0.5}),
    "gae_raw": ("gae", {"whiten": False, "gamma": 0.9}),
    "gdpo_nemo": ("gdpo", {"dialect": "nemo"}),
    "gigpo_plain": ("gigpo", {"norm_adv_by_std_in_grpo": False, "gamma": 0.5}),
    "grpo_passk_plain": ("grpo_passk", {"norm_adv_by_std_in_grpo": False}),
    "maxrl_skyrl": ("maxrl", {"dialect": "skyrl"}),
    "otb_corrected": ("otb", {"tis_mode": "token"}),
    "reinforce_plus_plus_discounted": ("reinforce_plus_plus", {"gamma": 0.5}),
    "reinforce_plus_plus_of_steps": ("reinforce_plus_plus", {"use_step_rewards": True}),
    "step_reinforce_discounted": ("step_reinforce", {"gamma": 0.5}),
    "step_reinforce_plain": ("step_reinforce", {"norm_adv_by_std_in_grpo": False}),
    "tir_otb_corrected": ("tir_otb", {"tis_mode": "sequence", "tis_cap": 1.5}),
}
OF_TRAJECTORIES = [
    *("dr_grpo", "dr_grpo_trl", "grpo_passk", "grpo_passk_plain", "hierarchical_grpo", "maxrl", "maxrl_skyrl", "opo")
]
OF_STEPS = ["gigpo", "gigpo_plain", "step_reinforce", "step_reinforce_discounted", "step_reinforce_plain"]
TOKEN_BASELINES = ["otb", "otb_corrected", "tir_otb", "tir_otb_corrected"]
GROUP_SCOPED = ["grpo_length", *OF_TRAJECTORIES, *OF_STEPS, *TOKEN_BASELINES]
ROLE_SCOPED = [
    "gae",
    "gae_raw",
    "gdpo",
    "gdpo_nemo",
    "gae_adaptive",
    "gpg",
    "liteppo",
    "prpo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_discounted",
    "reinforce_plus_plus_of_steps",
]
ZERO_WITHIN_GROUP = [*OF_TRAJECTORIES, "gpg", "liteppo"]
ZERO_WITHIN_ROLE = ["gdpo", "gdpo_nemo", "prpo", "reinforce_plus_plus"]

REWARD = st.integers(-80, 80).map(lambda eighths: eighths / 8)


def member(reward: float, turns: Any = ((1, 2), (1, 1))) -> dict[str, Any]:
    """All that any of the estimators looks at, made from one reward; the last step earns it."""
    steps = [0.0] * (len(turns) - 1) + [reward] * bool(turns)
    return {"reward": reward, "turns": list(turns), "steps": steps, "parts": {"whole": reward, "half": reward / 2}}


TURNS = st.sampled_from([(), ((1, 0),), ((1, 1),), ((2, 3),), ((1, 2), (3, 1))])
GROUPS = st.lists(st.lists(st.builds(member, REWARD, TURNS), max_size=6), max_size=5)

every = pytest.mark.parametrize(("name", "options"), VARIANTS.values(), ids=VARIANTS)


@pytest.fixture(scope="session")
def of_tokens(make_inputs: Any, call: Any, records: Any) -> Any:
    """Per-token advantages of the sampled tokens of each trajectory, group after group."""

    def estimate(name: str, groups: Any, **options: Any) -> list[list[Any]]:
        inputs = make_inputs(groups)
        tokens = to_tokens(inputs, call(name, inputs, **options), name, records[name].level)
        bounds = inputs.token_offsets[1:-1]
        pieces = np.split(tokens, bounds) if len(inputs.rewards) else []
        masks = np.split(inputs.loss_mask, bounds) if len(inputs.rewards) else []
        each = iter(piece[mask].tolist() for piece, mask in zip(pieces, masks, strict=True))
        return [[next(each) for _ in group] for group in groups]

    return estimate


def flat(groups: list[list[Any]]) -> list[float]:
    return [value for group in groups for tokens in group for value in tokens]


@every
@given(groups=GROUPS)
def test_every_result_is_finite_and_of_the_declared_level(
    make_inputs: Any, call: Any, records: Any, name: str, options: Any, groups: Any
) -> None:
    inputs = make_inputs(groups)
    result = call(name, inputs, **options)
    assert result.level == records[name].level
    assert result.values.dtype == np.float64
    counts = {"trajectory": inputs.rewards, "step": inputs.step_rewards, "token": inputs.loss_mask}
    assert result.values.shape == counts[result.level].shape
    assert np.isfinite(result.values).all()
    assert not np.shares_memory(result.values, inputs.rewards)


@every
@settings(max_examples=40)
@given(groups=GROUPS, random=st.randoms(use_true_random=False))
def test_order_of_members_and_groups_does_not_matter(
    of_tokens: Any, name: str, options: Any, groups: Any, random: Any
) -> None:
    orders = [random.sample(range(len(group)), len(group)) for group in groups]
    order = random.sample(range(len(groups)), len(groups))
    shuffled = [[groups[g][m] for m in orders[g]] for g in order]
    before = of_tokens(name, groups, **options)
    expected = [[before[g][m] for m in orders[g]] for g in order]
    assert flat(of_tokens(name, shuffled, **options)) == pytest.approx(flat(expected), rel=1e-5, abs=1e-5)


def test_the_scopes_are_the_declared_ones(records: Any) -> None:
    declared = {label: records[name].scope for label, (name, _) in VARIANTS.items()}
    assert {label for label, scope in declared.items() if scope == "group"} == set(GROUP_SCOPED)
    assert {label for label, scope in declared.items() if scope == "role"} == set(ROLE_SCOPED)
    assert {label for label, scope in declared.items() if scope == "trajectory"} == {"remax"}
    assert set(declared.values()) == {"trajectory", "group", "role"}


@pytest.mark.parametrize("label", GROUP_SCOPED)
@given(groups=GROUPS)
def test_group_scoped_estimators_give_the_same_for_each_group_alone(of_tokens: Any, label: str, groups: Any) -> None:
    name, options = VARIANTS[label]
    alone = [of_tokens(name, [group], **options)[0] for group in groups]
    assert flat(of_tokens(name, groups, **options)) == pytest.approx(flat(alone), rel=1e-6, abs=1e-6)


@given(groups=GROUPS)
def test_a_trajectory_scoped_estimator_gives_the_same_for_each_trajectory_alone(of_tokens: Any, groups: Any) -> None:
    alone = [[of_tokens("remax", [[one]])[0][0] for one in group] for group in groups]
    assert flat(of_tokens("remax", groups)) == flat(alone)


CONSTANTS = [0.1, 0.3, 0.7, 0.9, 1 / 3, 100.1, -0.1, 1e-300, 1e15 + 0.3]


@pytest.mark.parametrize("label", ZERO_WITHIN_GROUP)
@pytest.mark.parametrize("reward", CONSTANTS)
def test_c3_equal_rewards_of_a_group_give_exactly_zero(make_inputs: Any, call: Any, label: str, reward: float) -> None:
    name, options = VARIANTS[label]
    for size in range(2, 33):
        inputs = make_inputs([[member(reward, ((1, 1 + i % 3),)) for i in range(size)], [member(1.0), member(0.0)]])
        assert call(name, inputs, **options).values[:size].tolist() == [0.0] * size


@pytest.mark.parametrize("label", OF_STEPS)
@pytest.mark.parametrize("reward", CONSTANTS)
def test_c3_equal_returns_of_a_group_s_steps_give_exactly_zero(
    make_inputs: Any, call: Any, label: str, reward: float
) -> None:
    name, options = VARIANTS[label]
    for size in range(2, 33):
        equal = [member(reward, ((1, 1),)) for _ in range(size)]
        inputs = make_inputs([equal, [member(1.0), member(0.0)]])
        assert call(name, inputs, **options).values[:size].tolist() == [0.0] * size


@pytest.mark.parametrize("label", TOKEN_BASELINES)
@pytest.mark.parametrize("reward", CONSTANTS)
def test_c3_equal_rewards_give_exactly_zero_wherever_there_is_a_baseline(
    of_tokens: Any, label: str, reward: float
) -> None:
    name, options = VARIANTS[label]
    for size in range(2, 33):
        # Two are of the greatest length, so that none is alone at its end.
        equal = [member(reward, ((1, 1 + i % 3), (2, 1))) for i in range(size)]
        equal += [member(reward, ((1, 4), (2, 4)))] * 2
        values = of_tokens(name, [equal, [member(1.0), member(0.0)]], **options)
        assert not any(flat(values[:1]))


@pytest.mark.parametrize("label", ZERO_WITHIN_ROLE)
@pytest.mark.parametrize("reward", CONSTANTS)
def test_c3_equal_rewards_of_a_role_give_exactly_zero(make_inputs: Any, call: Any, label: str, reward: float) -> None:
    name, options = VARIANTS[label]
    for size in range(2, 33):
        inputs = make_inputs([[member(reward, ((1, 1 + i % 3),)) for i in range(size)], [member(reward)] * 2])
        assert not call(name, inputs, **options).values.any()


@pytest.mark.parametrize("label", ["gdpo", "gdpo_nemo"])
def test_gdpo_is_exactly_zero_where_only_groups_differ(make_inputs: Any, call: Any, label: str) -> None:
    name, options = VARIANTS[label]
    inputs = make_inputs([[member(0.1)] * 3, [member(0.7)] * 7, [member(100.1)] * 5])
    assert not call(name, inputs, **options).values.any()
