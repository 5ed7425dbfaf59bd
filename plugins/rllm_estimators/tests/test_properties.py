"""What holds for every estimator: order, scope, exact zeros, finiteness, no mutation, linear time."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    "reinforce_plus_plus_discounted": ("reinforce_plus_plus", {"gamma": 0.5}),
}
GROUP_SCOPED = ["dr_grpo", "dr_grpo_trl", "grpo_passk", "grpo_passk_plain", "maxrl", "maxrl_skyrl", "opo"]
ROLE_SCOPED = ["gae", "gdpo", "gdpo_nemo", "gpg", "prpo", "reinforce_plus_plus"]
ZERO_WITHIN_GROUP = [*GROUP_SCOPED, "gpg"]
ZERO_WITHIN_ROLE = ["gdpo", "gdpo_nemo", "prpo", "reinforce_plus_plus"]

REWARD = st.integers(-80, 80).map(lambda eighths: eighths / 8)


def member(reward: float, turns: Any = ((1, 2), (1, 1))) -> dict[str, Any]:
    return {"reward": reward, "turns": list(turns), "parts": {"whole": reward, "half": reward / 2}}


TURNS = st.sampled_from([(), ((1, 0),), ((1, 1),), ((2, 3),), ((1, 2), (3, 1))])
GROUPS = st.lists(st.lists(st.builds(member, REWARD, TURNS), max_size=6), max_size=5)

every = pytest.mark.parametrize(("name", "options"), VARIANTS.values(), ids=VARIANTS)


@pytest.fixture(scope="session")
def of_tokens(make_inputs: Any, call: Any) -> Any:
    """Per-token advantages of the sampled tokens of each trajectory, group after group."""

    def estimate(name: str, groups: Any, **options: Any) -> list[list[Any]]:
        inputs = make_inputs(groups)
        tokens = to_tokens(inputs, call(name, inputs, **options), name)
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
    assert result.values.shape == ((len(inputs.rewards),) if result.level == "trajectory" else inputs.loss_mask.shape)
    assert np.isfinite(result.values).all()
    assert not np.shares_memory(result.values, inputs.rewards)


@every
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
    assert {label for label, scope in declared.items() if scope == "role"} >= set(ROLE_SCOPED)
    assert set(declared.values()) == {"group", "role"}


@pytest.mark.parametrize("label", GROUP_SCOPED)
@given(groups=GROUPS)
def test_group_scoped_estimators_give_the_same_for_each_group_alone(of_tokens: Any, label: str, groups: Any) -> None:
    name, options = VARIANTS[label]
    alone = [of_tokens(name, [group], **options)[0] for group in groups]
    assert flat(of_tokens(name, groups, **options)) == pytest.approx(flat(alone), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("label", ROLE_SCOPED)
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
    make_inputs: Any, call: Any, name: str, options: Any
) -> None:
    for groups in (EXTREME, *([group] for group in EXTREME)):
        inputs = make_inputs([[member(reward) for reward in group] for group in groups])
        to_tokens(inputs, call(name, inputs, **options), name)


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
    assert len(columns) == 10
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
        component_names=("one", "two"),
        reward_components=random.random((n_trajectories, 2)),
    )


def seconds(call: Any, name: str, options: Any, inputs: AdvantageInput) -> float:
    took = []
    for _ in range(5):
        start = time.perf_counter()
        call(name, inputs, **options)
        took.append(time.perf_counter() - start)
    return min(took)


def check_linear(call: Any, name: str, options: Any, once: AdvantageInput, twice: AdvantageInput) -> None:
    """Below three times as long for twice as much. Measured again where the machine was busy."""
    pairs = []
    for _ in range(4):
        pairs.append((seconds(call, name, options, once), seconds(call, name, options, twice)))
        # What fits into a cache is faster, which is no matter of the algorithm: hence the milliseconds on top.
        if pairs[-1][1] < 3 * pairs[-1][0] + 0.005:
            return
    pytest.fail(f"seconds for one and two sizes: {pairs}")


@every
def test_time_is_linear_in_the_number_of_trajectories(call: Any, name: str, options: Any) -> None:
    once = large(131_072)
    assert seconds(call, name, options, once) < 1.0
    check_linear(call, name, options, once, large(262_144))


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus"])
def test_time_is_linear_in_the_length_of_a_trajectory(call: Any, name: str) -> None:
    once = large(8, 131_072)
    assert seconds(call, name, {}, once) < 1.0
    check_linear(call, name, {}, once, large(8, 262_144))
