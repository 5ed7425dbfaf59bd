"""Eleven small cases on which implementations of advantage estimators are known to differ, for all our estimators.

The numbers come from the formulas, computed by hand. Every estimator is called as in the framework, on a batch of
tokens. Other files in this directory compare with the libraries themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rllm_core.algorithms.estimation import estimate
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.errors import RewardError
from rllm_core.pipeline.transform_stages import CheckRewards
from rllm_core.schema.algorithm_sections import AlgorithmSection

from .every_estimator import (
    READ_LENGTHS,
    RECORDS,
    VARIANTS,
    WITHOUT_A_CENTRE,
    Groups,
    Turns,
    advantages,
    batch_of,
    flat,
    of_rewards,
    one_each,
    rollout,
    with_options,
)


def test_every_estimator_takes_part() -> None:
    assert {name for name, _ in VARIANTS.values()} == set(RECORDS)
    dialects = {
        (name, dialect)
        for name, record in RECORDS.items()
        if "dialect" in record.params.model_fields
        for dialect in record.params.model_fields["dialect"].annotation.__args__
    }
    params = [(name, RECORDS[name].params(**options)) for name, options in VARIANTS.values()]
    assert set(C2) == set(VARIANTS) - {"gae_whitened"}, "which differs from token to token"
    assert dialects == {(name, own.dialect) for name, own in params if hasattr(own, "dialect")}


# C2: a group of one next to a pair, four tokens each. C1, a group of four, is part of the comparisons with libraries.

C2 = {
    label: values
    for labels, values in (
        ("a2po", [0, 0.283110, -0.716890]),
        ("grpo grpo_length hierarchical_grpo", [0.999999, 0.999998, -0.999998]),
        ("grpo_verl gigpo", [0.999999, 0.707106, -0.707106]),
        ("grpo_trl", [0, 0.707007, -0.707007]),
        ("grpo_plain grpo_verl_plain dr_grpo opo otb otb_corrected tir_otb tir_otb_corrected", [1, 0.5, -0.5]),
        ("grpo_trl_plain dr_grpo_trl step_reinforce_plain", [0, 0.5, -0.5]),
        ("rloo rloo_verl", [1, 1, -1]),
        ("rloo_trl maxrl gdpo_nemo", [0, 1, -1]),
        ("reinforce gae", [1, 1, 0]),
        ("reinforce_plus_plus_baseline", [0, 1.224742, -1.224742]),
        ("reinforce_plus_plus_baseline_verl", [1.023533, 0.255883, -1.279416]),
        ("gpg", [1.5, 0.75, -0.75]),
        ("liteppo", [0, 0.865875, -0.865875]),
        ("mix", [0.788674, 0.788674, -1.077350]),
        ("rae", [0.904917, 0.904917, -0.095083]),
        ("spo", [0.577350, 0.577350, -1.154701]),
        ("grpo_passk", [0, 1.414212, 0]),
        ("grpo_passk_plain", [0, 1, 0]),
        ("maxrl_skyrl", [1, 0.999998, -0.999998]),
        ("prpo", [0.707105, 0.707105, -1.414211]),
        ("gdpo", [0.856349, 0.48012, -1.336469]),
        ("remax", [0.5, 0.5, -0.5]),
        ("reinforce_plus_plus reinforce_plus_plus_of_steps", [0.677003, 0.677003, -1.354006]),
        ("step_reinforce", [0, 0.707106, -0.707106]),
    )
    for label in labels.split()
}


def near(expected: Mapping[str, Any], *, off: float) -> dict[str, Any]:
    """The expected advantages by label, each within `off`."""
    return {label: pytest.approx(values, abs=off) for label, values in expected.items()}


def test_c2_group_of_one_next_to_a_pair() -> None:
    assert {label: one_each(label, of_rewards([[1], [1, 0]], said=4)) for label in C2} == near(C2, off=2e-6)


# C3: equal rewards. Rounding noise divided by a tiny deviation gives others up to 0.86.

CONSTANTS = [0.1, 0.7, 1 / 3, 100.1, -0.1, 1e-300, 1e15 + 0.3]
SIZES = (2, 3, 5, 6, 7, 10, 13, 32)
"""Sizes of groups. The mean of this many equal numbers often differs from the number."""
WITHIN_ROLE = {label for label in VARIANTS if RECORDS[VARIANTS[label][0]].scope == "role"} - WITHOUT_A_CENTRE
SHIFTED = WITHIN_ROLE - {"gpg", "reinforce_plus_plus_baseline"}
"""Estimators that center over the role at the end, which also moves groups of equal rewards."""


@pytest.mark.parametrize("reward", CONSTANTS)
def test_c3_equal_rewards_of_group_give_exactly_zero(reward: float) -> None:
    equal = [[reward] * size for size in SIZES]
    groups = of_rewards([*equal, [1.0, 0.0]])
    for label in sorted(set(VARIANTS) - WITHOUT_A_CENTRE - SHIFTED):
        values = advantages(label, groups)
        assert not any(flat(values[:-1])), label
        assert any(flat(values[-1:])), f"{label}: the other group has a signal"


@pytest.mark.parametrize("reward", CONSTANTS)
def test_c3_equal_rewards_of_role_give_exactly_zero(reward: float) -> None:
    for size in SIZES:
        groups = of_rewards([[reward] * size, [reward, reward]])
        assert [label for label in sorted(SHIFTED) if any(flat(advantages(label, groups)))] == []


@pytest.mark.parametrize("reward", CONSTANTS)
def test_c3_remax_reward_equal_to_greedy_gives_zero(reward: float) -> None:
    (members,) = of_rewards([[reward] * 32])
    for member in members:
        member.info["greedy_reward"] = reward
    assert not any(flat(advantages("remax", [members])))


# C4: uneven lengths.

C4_REWARDS = [[1, 0], [0.5, 0]]
C4_LENGTHS = [[4, 1], [2, 2]]
C4 = {
    "opo": [0.2, -0.8, 0.25, -0.25],
    "reinforce_plus_plus_baseline_verl": [0.843274, -1.686548, 0.210819, -1.054093],
    "gdpo": [2 / 3, -4 / 3, 2 / 3, -4 / 3],
    "reinforce_plus_plus": [0.957895, -1.197369, -0.119737, -1.197369],
    "reinforce_plus_plus_of_steps": [0.957895, -1.197369, -0.119737, -1.197369],
    "gae": [1, 0, 0.5, 0],
}


def uneven() -> list[list[Trajectory]]:
    return [
        [rollout(reward, ((1, said),)) for reward, said in zip(rewards, lengths, strict=True)]
        for rewards, lengths in zip(C4_REWARDS, C4_LENGTHS, strict=True)
    ]


def test_c4_lengths_weigh() -> None:
    assert {label: one_each(label, uneven()) for label in C4} == near(C4, off=5e-6)


def test_c4_lengths_do_not_enter() -> None:
    labels = set(VARIANTS) - READ_LENGTHS
    even = of_rewards(C4_REWARDS)
    assert {label for label in labels if one_each(label, uneven()) != one_each(label, even)} == set()


def test_c4_longest_has_no_baseline_beyond_the_second() -> None:
    expected = [0.5, 1, 1, 1, -0.5, 0.25, 0.25, -0.25, -0.25]
    for label in ("otb", "tir_otb"):
        assert flat(advantages(label, uneven())) == pytest.approx(expected, abs=2e-6), label


# C5: a missing or NaN reward. No estimator receives one.


def after_check(rewards: Sequence[float | None], on_missing_reward: str) -> list[list[Trajectory]]:
    settings = AlgorithmSection(on_missing_reward=on_missing_reward)
    context: Any = SimpleNamespace(config=SimpleNamespace(rllm=SimpleNamespace(algorithm=settings)))
    step = TrainStep(global_step=0, epoch=0, total_steps=1, tasks=[])
    step.trajectory_groups = [TrajectoryGroup(group_id="t:agent", trajectories=[rollout(reward) for reward in rewards])]
    asyncio.run(CheckRewards(context, NoParams())(step))
    return [group.trajectories for group in step.trajectory_groups]


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf")])
def test_c5_missing_reward_is_an_error_or_dropped(missing: float | None) -> None:
    """A dropped one does not change its group."""
    with pytest.raises(RewardError, match=r"Trajectory 'agent' of .* has reward (None|nan|inf)"):
        after_check([1, missing, 0, 0], "error")
    without, dropped = after_check([1, 0, 0], "error"), after_check([1, missing, 0, 0], "drop")
    assert [label for label in VARIANTS if advantages(label, dropped) != advantages(label, without)] == []


# C6: observations between the turns.

GAP, WITHOUT_GAP = ((1, 2), (2, 2)), ((1, 2), (0, 2))


def test_c6_observations_between_turns_change_nothing() -> None:
    def values(label: str, turns: Turns) -> list[float]:
        return flat(advantages(label, [[rollout(1, turns), rollout(0.25, ((1, 3),))], [rollout(0, turns)]]))

    labels = set(VARIANTS) - {"otb", "otb_corrected"}
    assert {label for label in labels if values(label, GAP) != values(label, WITHOUT_GAP)} == set()


def test_c6_last_reward_reaches_turns_before_an_observation() -> None:
    for label in ("reinforce_plus_plus", "reinforce_plus_plus_of_steps", "gae", "tir_otb"):
        first, *rest = advantages(label, [[rollout(1, GAP), rollout(0, ((1, 4),))]])[0][0]
        assert first > 0, label
        assert rest == pytest.approx([first] * 3), label


def test_c6_a_discount_counts_sampled_tokens() -> None:
    discounted = with_options("gae", whiten=False, gamma=0.5, lam=1.0)
    found = estimate(batch_of([[rollout(1, GAP)]]), lambda role: discounted)
    assert found.advantages.tolist() == [0, 0.125, 0.25, 0, 0, 0.5, 1]
    assert found.returns is not None
    assert found.returns.tolist() == [0, 0.125, 0.25, 0, 0, 0.5, 1]


def test_c6_only_otb_aligns_trajectories_by_read_tokens() -> None:
    pair = [rollout(1, ((1, 1), (1, 1))), rollout(0, ((1, 2),))]
    assert flat(advantages("otb", [pair]))[1::2] == [0, 0]
    assert min(map(abs, flat(advantages("tir_otb", [pair])))) > 0.4


# C7 and C8, whose company matters, are tests of the contract of estimators.


def mixed() -> list[list[Trajectory]]:
    return [
        [rollout(1, ((1, 3), (1, 1))), rollout(0.25), rollout(0, ((2, 1),))],
        [rollout(0.5, ((1, 4),))],
        [rollout(2, ((1, 1), (3, 2))), rollout(2), rollout(-1, ((1, 5),)), rollout(0)],
    ]


# C9: one failure among near successes, where a difference of squares cancels.

ONE_OF_EIGHT = [-2.474874, *[0.353553] * 7]
"""Distances from the mean over the standard deviation (ddof 1), for any two rewards."""
C9 = {
    "rloo": [-0.95, *[0.135714] * 7],
    "grpo": [-2.645743, *[0.377963] * 7],
    "grpo_verl": [-2.474867, *[0.353552] * 7],
    "grpo_trl": [-2.474137, *[0.353448] * 7],
    "gdpo_nemo": ONE_OF_EIGHT,
}


def test_c9_one_failure_among_near_successes() -> None:
    groups = of_rewards([[0, *[0.95] * 7]])
    assert {label: one_each(label, groups) for label in C9} == near(C9, off=3e-6)
    assert [label for label in VARIANTS if max(map(abs, flat(advantages(label, groups)))) >= 3] == []


# C10: rewards that hardly differ.

HARDLY = [[1, 1 + 1e-5, 1 + 2e-5, 1 + 3e-5]]
C10 = {
    "grpo": 1.231,
    "grpo_verl": 1.078,
    "grpo_trl": 0.1328,
    "rloo": 2e-5,
    "reinforce_plus_plus_baseline": 1.231,
    "reinforce_plus_plus_baseline_verl": 0.1488,
}


def test_c10_the_epsilon_decides_where_rewards_hardly_differ() -> None:
    for label, expected in C10.items():
        first, *_, last = one_each(label, of_rewards(HARDLY))
        assert (-first, last) == pytest.approx((expected, expected), rel=1e-3), label


# C11 and C12: one token, and no token.

WITHOUT_OTHERS = {label for label in VARIANTS if label.startswith("reinforce_plus_plus")} | {
    "gdpo",
    "gae_whitened",
    "spo",
}
"""Estimators that compare with the rest of the role, which is empty. verl raises ValueError if it whitens."""


def test_c11_a_single_token() -> None:
    singles = {"remax": 0.25, "gpg": 0.75, "mix": 0.375, "rae": 0.7125}
    zero = {label for label in VARIANTS if label in WITHOUT_OTHERS or C2.get(label, [1.0])[0] == 0 or label == "prpo"}
    expected = {label: [singles.get(label, 0.0 if label in zero else 0.75)] for label in VARIANTS}
    assert {label: flat(advantages(label, [[rollout(0.75, ((1, 1),))]])) for label in VARIANTS} == near(
        expected, off=1e-6
    )


@pytest.mark.parametrize("groups", [[], [[], []], [[rollout(1, ())], []], [[rollout(1, ((2, 0),)), rollout(0, ())]]])
def test_c12_nothing_gives_nothing(groups: Groups) -> None:
    assert [label for label in VARIANTS if flat(advantages(label, groups))] == []


def test_c12_empty_group_changes_no_other() -> None:
    with_empty, without = [[], *mixed(), []], mixed()
    assert [each for each in VARIANTS if flat(advantages(each, with_empty)) != flat(advantages(each, without))] == []
