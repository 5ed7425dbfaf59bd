"""The four estimators against their formulas, on the conformance cases and on random ragged groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm_core.algorithms import advantage
from rllm_core.algorithms.options import GrpoParams
from rllm_core.builtin import rllm_estimators
from rllm_core.contracts.estimator import AdvantageInput
from rllm_core.contracts.plugin import NoParams

Rewards = list[list[float]]
MakeInputs = Callable[..., AdvantageInput]
EPSILON = 1e-6


def grpo(inputs: AdvantageInput) -> list[float]:
    return advantage.grpo(inputs, GrpoParams()).values.tolist()


def grpo_without_std(inputs: AdvantageInput) -> list[float]:
    return advantage.grpo(inputs, GrpoParams(norm_adv_by_std_in_grpo=False)).values.tolist()


def rloo(inputs: AdvantageInput) -> list[float]:
    return advantage.rloo(inputs, NoParams()).values.tolist()


def reinforce(inputs: AdvantageInput) -> list[float]:
    return advantage.reinforce(inputs, NoParams()).values.tolist()


def reinforce_plus_plus_baseline(inputs: AdvantageInput) -> list[float]:
    return advantage.reinforce_plus_plus_baseline(inputs, NoParams()).values.tolist()


def naive_grpo(groups: Rewards) -> list[float]:
    values = []
    for group in groups:
        rewards = np.array(group)
        if len(rewards) == 1:
            values += [rewards[0] / (1 + EPSILON)]
        elif len(rewards):
            values += ((rewards - rewards.mean()) / (rewards.std() + EPSILON)).tolist()
    return values


def naive_grpo_without_std(groups: Rewards) -> list[float]:
    return [r if len(group) == 1 else r - np.mean(group) for group in groups for r in group]


def naive_rloo(groups: Rewards) -> list[float]:
    values = []
    for group in groups:
        for index, reward in enumerate(group):
            others = group[:index] + group[index + 1 :]
            values.append(reward - np.mean(others) if others else reward)
    return values


def naive_reinforce(groups: Rewards) -> list[float]:
    return [reward for group in groups for reward in group]


def naive_reinforce_plus_plus_baseline(groups: Rewards) -> list[float]:
    centred = [reward - np.mean(group) for group in groups for reward in group]
    return [value / (np.std(centred) + EPSILON) for value in centred]


PAIRS = {
    "grpo": (grpo, naive_grpo),
    "grpo_without_std": (grpo_without_std, naive_grpo_without_std),
    "rloo": (rloo, naive_rloo),
    "reinforce": (reinforce, naive_reinforce),
    "reinforce_plus_plus_baseline": (reinforce_plus_plus_baseline, naive_reinforce_plus_plus_baseline),
}
CENTRING = [grpo, grpo_without_std, rloo, reinforce_plus_plus_baseline]
GROUP_SCOPED = [grpo, grpo_without_std, rloo, reinforce]

# Multiples of 1/8 so that equal rewards are as common as different ones, and no std is tiny without being 0.
REWARD = st.integers(-80, 80).map(lambda eighths: eighths / 8)
GROUPS = st.lists(st.lists(REWARD, max_size=9), max_size=6)

by_estimator = pytest.mark.parametrize(("estimator", "naive"), PAIRS.values(), ids=PAIRS)


@by_estimator
@given(groups=GROUPS)
def test_ragged_groups_give_what_a_loop_over_groups_gives(
    make_inputs: MakeInputs,
    estimator: Callable[[AdvantageInput], list[float]],
    naive: Callable[[Rewards], list[float]],
    groups: Rewards,
) -> None:
    assert estimator(make_inputs(groups)) == pytest.approx(naive(groups), rel=1e-12, abs=1e-12)


def test_c1_one_solved_at_both_ends(make_inputs: MakeInputs) -> None:
    inputs = make_inputs([[1, 0, 0, 1]])
    assert grpo(inputs) == pytest.approx([0.999998, -0.999998, -0.999998, 0.999998], abs=1e-9)
    assert grpo_without_std(inputs) == [0.5, -0.5, -0.5, 0.5]
    assert rloo(inputs) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])
    assert reinforce(inputs) == [1, 0, 0, 1]
    assert reinforce_plus_plus_baseline(inputs) == pytest.approx([0.999998, -0.999998, -0.999998, 0.999998], abs=1e-9)


def test_c2_a_singleton_beside_a_pair(make_inputs: MakeInputs) -> None:
    inputs = make_inputs([[1], [1, 0]])
    assert grpo(inputs) == pytest.approx([1 / (1 + EPSILON), 0.999998, -0.999998], abs=1e-9)
    assert grpo_without_std(inputs) == [1, 0.5, -0.5]
    assert rloo(inputs) == [1, 1, -1]
    # The table's row of measured values: 0 and plus or minus 1.225.
    assert reinforce_plus_plus_baseline(inputs) == pytest.approx([0, 1.2247, -1.2247], abs=1e-4)


@pytest.mark.parametrize("estimator", CENTRING)
@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7, 0.9, 1 / 3, 100.1, -0.1, 1e-300, 1e15 + 0.3])
def test_c3_equal_rewards_give_exactly_zero(
    make_inputs: MakeInputs, estimator: Callable[[AdvantageInput], list[float]], reward: float
) -> None:
    for size in range(2, 33):
        assert estimator(make_inputs([[reward] * size])) == [0.0] * size
        # Also beside a group that has signal, whose statistics must not leak in.
        assert estimator(make_inputs([[reward] * size, [1.0, 0.0]]))[:size] == [0.0] * size


@by_estimator
def test_c4_lengths_do_not_enter(
    make_inputs: MakeInputs,
    estimator: Callable[[AdvantageInput], list[float]],
    naive: Callable[[Rewards], list[float]],
) -> None:
    rewards = [[1.0, 0.0], [0.5, 0.0]]
    uneven = make_inputs(rewards, said=[[4, 1], [2, 2]])
    assert uneven.response_lengths.tolist() == [4, 1, 2, 2]
    assert estimator(uneven) == pytest.approx(naive(rewards), abs=1e-12)


@by_estimator
def test_c9_one_failure_among_near_successes_stays_finite(
    make_inputs: MakeInputs,
    estimator: Callable[[AdvantageInput], list[float]],
    naive: Callable[[Rewards], list[float]],
) -> None:
    rewards = [[0.0, *[0.95] * 7]]
    values = estimator(make_inputs(rewards))
    assert values == pytest.approx(naive(rewards), rel=1e-12)
    assert max(map(abs, values)) < 3


def test_c10_tiny_differences_are_damped_by_the_epsilon(make_inputs: MakeInputs) -> None:
    values = grpo(make_inputs([[1, 1 + 1e-5, 1 + 2e-5, 1 + 3e-5]]))
    assert values[-1] == pytest.approx(1.231, abs=1e-3)
    assert values[0] == pytest.approx(-1.231, abs=1e-3)


@by_estimator
def test_c12_nothing_gives_nothing(
    make_inputs: MakeInputs,
    estimator: Callable[[AdvantageInput], list[float]],
    naive: Callable[[Rewards], list[float]],
) -> None:
    assert estimator(make_inputs([])) == []
    assert estimator(make_inputs([[], [1.0, 0.0], []])) == pytest.approx(naive([[1.0, 0.0]]))


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (grpo, 2.5 / (1 + EPSILON)),
        (grpo_without_std, 2.5),
        (rloo, 2.5),
        (reinforce, 2.5),
        (reinforce_plus_plus_baseline, 0.0),
    ],
)
def test_a_group_of_one(
    make_inputs: MakeInputs, estimator: Callable[[AdvantageInput], list[float]], expected: float
) -> None:
    assert estimator(make_inputs([[2.5]])) == [expected]


@by_estimator
@given(groups=GROUPS, random=st.randoms(use_true_random=False))
def test_order_of_members_and_groups_does_not_matter(
    make_inputs: MakeInputs,
    estimator: Callable[[AdvantageInput], list[float]],
    naive: Callable[[Rewards], list[float]],
    groups: Rewards,
    random: object,
) -> None:
    def by_group(rewards: Rewards) -> list[list[float]]:
        values = iter(estimator(make_inputs(rewards)))
        return [[next(values) for _ in group] for group in rewards]

    orders = [random.sample(range(len(group)), len(group)) for group in groups]  # type: ignore[attr-defined]
    order = random.sample(range(len(groups)), len(groups))  # type: ignore[attr-defined]
    shuffled = [[groups[g][m] for m in orders[g]] for g in order]
    before = by_group(groups)
    expected = [before[g][m] for g in order for m in orders[g]]
    assert [value for group in by_group(shuffled) for value in group] == pytest.approx(expected, rel=1e-9, abs=1e-9)


LARGE_GROUPS = st.lists(st.lists(REWARD, min_size=2, max_size=9), min_size=1, max_size=6)


@pytest.mark.parametrize("estimator", CENTRING)
@given(groups=LARGE_GROUPS, shift=REWARD)
def test_adding_a_constant_to_all_rewards_changes_nothing(
    make_inputs: MakeInputs, estimator: Callable[[AdvantageInput], list[float]], groups: Rewards, shift: float
) -> None:
    shifted = [[reward + shift for reward in group] for group in groups]
    assert estimator(make_inputs(shifted)) == pytest.approx(estimator(make_inputs(groups)), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("estimator", [grpo_without_std, rloo, reinforce])
@given(groups=GROUPS, scale=st.sampled_from([0.25, 2.0, 1024.0]))
def test_scaling_rewards_scales_advantages_that_are_not_divided_by_a_std(
    make_inputs: MakeInputs, estimator: Callable[[AdvantageInput], list[float]], groups: Rewards, scale: float
) -> None:
    scaled = [[reward * scale for reward in group] for group in groups]
    expected = [scale * value for value in estimator(make_inputs(groups))]
    assert estimator(make_inputs(scaled)) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("estimator", [grpo, reinforce_plus_plus_baseline])
@given(groups=LARGE_GROUPS, scale=st.sampled_from([2.0, 1024.0]))
def test_scaling_rewards_hardly_changes_advantages_that_are_divided_by_a_std(
    make_inputs: MakeInputs, estimator: Callable[[AdvantageInput], list[float]], groups: Rewards, scale: float
) -> None:
    scaled = [[reward * scale for reward in group] for group in groups]
    assert estimator(make_inputs(scaled)) == pytest.approx(estimator(make_inputs(groups)), rel=1e-4)


def test_the_estimators_here_have_the_scopes_they_declare() -> None:
    scopes = {record.name: record.scope for record in rllm_estimators()}
    assert scopes == {
        "grpo": "group",
        "reinforce": "trajectory",
        "rloo": "group",
        "reinforce_plus_plus_baseline": "role",
    }


@pytest.mark.parametrize("estimator", GROUP_SCOPED)
@given(groups=GROUPS)
def test_group_scoped_estimators_give_the_same_for_each_group_alone(
    make_inputs: MakeInputs, estimator: Callable[[AdvantageInput], list[float]], groups: Rewards
) -> None:
    alone = [value for group in groups for value in estimator(make_inputs([group]))]
    assert estimator(make_inputs(groups)) == pytest.approx(alone, rel=1e-12, abs=1e-12)


@given(groups=GROUPS)
def test_a_trajectory_scoped_estimator_gives_the_same_for_each_trajectory_alone(
    make_inputs: MakeInputs, groups: Rewards
) -> None:
    alone = [value for group in groups for reward in group for value in reinforce(make_inputs([[reward]]))]
    assert reinforce(make_inputs(groups)) == alone


def test_a_role_scoped_estimator_does_not(make_inputs: MakeInputs) -> None:
    groups = [[1.0, 0.0], [10.0, 0.0]]
    together = reinforce_plus_plus_baseline(make_inputs(groups))
    alone = [value for group in groups for value in reinforce_plus_plus_baseline(make_inputs([group]))]
    assert together != pytest.approx(alone, rel=0.1)


@by_estimator
def test_inputs_are_left_as_they_are(
    make_inputs: MakeInputs,
    estimator: Callable[[AdvantageInput], list[float]],
    naive: Callable[[Rewards], list[float]],
) -> None:
    inputs = make_inputs([[1.0, 0.25, 0.0], [3.0]])
    columns = {name: column.tobytes() for name, column in vars(inputs).items() if isinstance(column, np.ndarray)}
    assert len(columns) == 8
    estimator(inputs)
    assert {name: getattr(inputs, name).tobytes() for name in columns} == columns


@pytest.mark.parametrize("function", [advantage.reinforce, advantage.rloo])
def test_results_do_not_share_memory_with_the_rewards(make_inputs: MakeInputs, function: object) -> None:
    inputs = make_inputs([[1.0], [2.0]])
    assert not np.shares_memory(function(inputs, NoParams()).values, inputs.rewards)  # type: ignore[operator]


@by_estimator
def test_time_grows_in_proportion_to_the_number_of_groups(
    estimator: Callable[[AdvantageInput], list[float]], naive: Callable[[Rewards], list[float]]
) -> None:
    def seconds(n_groups: int) -> float:
        rewards = np.random.default_rng(0).random(8 * n_groups)
        empty = np.zeros(0, np.int64)
        inputs = AdvantageInput(
            rewards=rewards,
            group_offsets=np.arange(0, len(rewards) + 1, 8),
            response_lengths=empty,
            step_offsets=empty,
            step_rewards=np.zeros(0),
            token_offsets=empty,
            loss_mask=np.zeros(0, np.bool_),
            groups=[],
        )
        took: Sequence[float] = [_seconds_of(lambda: estimator(inputs)) for _ in range(5)]
        return min(took)

    assert seconds(16_000) < 4 * 16 * seconds(1_000)  # a quadratic one takes 256 times as long


def _seconds_of(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
