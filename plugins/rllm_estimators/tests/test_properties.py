"""What holds for every estimator: order, scope, exact zeros, finiteness, no mutation, linear time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from rllm_core.algorithms.estimation import to_tokens
from rllm_core.contracts.estimator import AdvantageInput
from rllm_estimators.plugin import rllm_estimators

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{record.name: (record.name, {}) for record in rllm_estimators()},
    "dr_grpo_trl": ("dr_grpo", {"dialect": "trl"}),
    "gae_raw": ("gae", {"whiten": False, "gamma": 0.9}),
    "gdpo_nemo": ("gdpo", {"dialect": "nemo"}),
    "grpo_passk_plain": ("grpo_passk", {"norm_adv_by_std_in_grpo": False}),
    "maxrl_skyrl": ("maxrl", {"dialect": "skyrl"}),
    "otb_corrected": ("otb", {"tis_mode": "token"}),
    "reinforce_plus_plus_discounted": ("reinforce_plus_plus", {"gamma": 0.5}),
    "reinforce_plus_plus_of_steps": ("reinforce_plus_plus", {"use_step_rewards": True}),
    "step_reinforce_discounted": ("step_reinforce", {"gamma": 0.5}),
    "step_reinforce_plain": ("step_reinforce", {"norm_adv_by_std_in_grpo": False}),
    "tir_otb_corrected": ("tir_otb", {"tis_mode": "sequence", "tis_cap": 1.5}),
}
OF_TRAJECTORIES = ["dr_grpo", "dr_grpo_trl", "grpo_passk", "grpo_passk_plain", "maxrl", "maxrl_skyrl", "opo"]
OF_STEPS = ["step_reinforce", "step_reinforce_discounted", "step_reinforce_plain"]
TOKEN_BASELINES = ["otb", "otb_corrected", "tir_otb", "tir_otb_corrected"]
GROUP_SCOPED = [*OF_TRAJECTORIES, *OF_STEPS, *TOKEN_BASELINES]
ROLE_SCOPED = [
    "gae",
    "gae_raw",
    "gdpo",
    "gdpo_nemo",
    "gpg",
    "prpo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_discounted",
    "reinforce_plus_plus_of_steps",
]
ZERO_WITHIN_GROUP = [*OF_TRAJECTORIES, "gpg"]
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


@pytest.mark.parametrize("label", [label for label in ROLE_SCOPED if label != "gae_raw"])
def test_role_scoped_estimators_do_not(of_tokens: Any, label: str) -> None:
    name, options = VARIANTS[label]
    group, other = [member(1.0), member(0.5, ((1, 4),))], [member(8.0), member(0.0), member(0.0)]
    (alone,) = of_tokens(name, [group], **options)
    assert flat([of_tokens(name, [group, other], **options)[0]]) != pytest.approx(flat([alone]), rel=1e-3)


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


EXTREME = [[1e8, -1e8, 1e8 + 1], [1.0, 1.0 + 1e-12, 1.0 - 1e-12], [1e8, 1e-12, 0.0, 0.0], [-1e8], [1e-12, -1e-12]]


@every
def test_extreme_rewards_give_numbers_that_fit_into_float32(
    make_inputs: Any, call: Any, records: Any, name: str, options: Any
) -> None:
    for groups in (EXTREME, *([group] for group in EXTREME)):
        inputs = make_inputs([[member(reward) for reward in group] for group in groups])
        to_tokens(inputs, call(name, inputs, **options), name, records[name].level)


@every
@pytest.mark.parametrize("groups", [[], [[], []], [[member(1.0, ())], []], [[member(1.0, ((2, 0),)), member(0.0, ())]]])
def test_c12_nothing_sampled_gives_nothing(of_tokens: Any, name: str, options: Any, groups: Any) -> None:
    assert flat(of_tokens(name, groups, **options)) == []


@every
def test_a_trajectory_without_tokens_hinders_nobody(of_tokens: Any, name: str, options: Any) -> None:
    values = of_tokens(name, [[member(1.0), member(0.5, ()), member(0.0)]], **options)
    assert [len(tokens) for tokens in values[0]] == [3, 0, 3]
    assert flat(values) != [0.0] * 6


@every
def test_inputs_are_left_as_they_are(make_inputs: Any, call: Any, name: str, options: Any) -> None:
    inputs = make_inputs([[member(1.0), member(0.25), member(0.0)], [member(3.0)]])
    columns = {key: column.tobytes() for key, column in vars(inputs).items() if isinstance(column, np.ndarray)}
    assert len(columns) == 13
    call(name, inputs, **options)
    assert {key: getattr(inputs, key).tobytes() for key in columns} == columns


def large(n_trajectories: int, tokens: int = 8) -> AdvantageInput:
    """Groups of eight; half of the tokens are sampled."""
    random = np.random.default_rng(0)
    rewards = random.integers(0, 9, n_trajectories) / 8
    ends = np.arange(n_trajectories + 1)
    return AdvantageInput(
        rewards=rewards,
        group_offsets=np.arange(0, n_trajectories + 1, 8),
        response_lengths=np.full(n_trajectories, tokens // 2),
        step_offsets=ends,
        step_rewards=rewards,
        token_offsets=ends * tokens,
        loss_mask=np.tile(np.arange(tokens) % 2 == 1, n_trajectories),
        groups=[],
        values=random.random(n_trajectories * tokens).astype(np.float32),
        old_logprobs=np.full(n_trajectories * tokens, -1, np.float32),
        sampling_logprobs=np.full(n_trajectories * tokens, -1.5, np.float32),
        sum_pi_squared=np.full(n_trajectories * tokens, 0.5, np.float32),
        greedy_rewards=rewards / 2,
        component_names=("one", "two"),
        reward_components=random.random((n_trajectories, 2)),
    )


def seconds(action: Callable[[], object]) -> float:
    took = []
    for _ in range(3):
        start = time.thread_time()
        action()
        took.append(time.thread_time() - start)
    return min(took)


GROWTH = 64


def check_linear(call: Any, name: str, small: AdvantageInput, large: AdvantageInput) -> None:
    """A quadratic one takes 4096 times as long for 64 times as much.

    Memory that is fetched anew, and caches that overflow, make the large one up to ten times as slow per element.
    """
    ratio = seconds(lambda: call(name, large)) / seconds(lambda: call(name, small))
    assert ratio < 16 * GROWTH


@pytest.mark.parametrize("name", [record.name for record in rllm_estimators()])
def test_time_is_linear_in_the_number_of_trajectories(call: Any, name: str) -> None:
    check_linear(call, name, large(16_384, 2), large(GROWTH * 16_384, 2))


@pytest.mark.parametrize("name", ["gae", "otb", "reinforce_plus_plus", "tir_otb"])
def test_time_is_linear_in_the_length_of_a_trajectory(call: Any, name: str) -> None:
    check_linear(call, name, large(8, 8_192), large(8, GROWTH * 8_192))
