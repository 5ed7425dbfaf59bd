"""The difference explained: each reason is a fact about these groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from rllm_view.rescoring.facts import facts_of
from rllm_view.rescoring.laws import law_of
from rllm_view.rescoring.line_reasons import why
from rllm_view.rescoring.reason import Side
from rllm_view.rescoring.reasons import reasons
from rllm_view.rescoring.scores import ScoredGroup

Reasons = Callable[..., dict[str, str]]


def _sides(groups: Sequence[ScoredGroup], about_b: dict[str, Any]) -> tuple[Side, Side]:
    facts = facts_of(groups)
    plain: dict[str, Any] = {"level": "trajectory", "scope": "group"}
    return (
        Side(label="a", setup=0, law=law_of(groups, facts, 0), **plain),
        Side(label="b", setup=1, law=law_of(groups, facts, 1), **{**plain, **about_b}),
    )


@pytest.fixture
def told() -> Reasons:
    """Kind to text of the reasons why the second setup differs from the first."""

    def make(*groups: ScoredGroup, **about_b: Any) -> dict[str, str]:
        found = reasons(groups, facts_of(groups), *_sides(groups, about_b))
        return {reason.kind: reason.text for reason in found}

    return make


def test_nothing_different_is_said_to_be_the_same(group: Callable[..., ScoredGroup], told: Reasons) -> None:
    assert told(group([0, 1], [0, 1], [0, 1])) == {"none": "a and b give every trajectory the same."}


def test_division_by_the_groups_deviation_is_told_by_the_groups_it_scales(
    group: Callable[..., ScoredGroup], told: Reasons
) -> None:
    groups = []
    for index, spread in enumerate((0.1, 0.2, 0.4, 0.8)):
        centred = np.array([-spread, spread])
        groups.append(group(0.5 + centred, centred, centred / spread, name=f"t{index}:agent"))
    text = told(*groups)["scale"]
    assert "1.25 to 10 times as much as a" in text
    assert (
        "least in group 't3:agent' of step 0 (n 2, std 0.8), most in group 't0:agent' of step 0 (n 2, std 0.1)" in text
    )
    assert "follows the group std" in text


def test_one_factor_for_all_groups_is_told_as_a_number(group: Callable[..., ScoredGroup], told: Reasons) -> None:
    assert told(group([0, 1], [-1, 1], [-2, 2]), group([0, 2], [-1, 1], [-2, 2])) == {
        "scale": "b is 2 times as steep in the reward as a in every group."
    }


def test_another_factor_in_every_step_is_told_as_such(group: Callable[..., ScoredGroup], told: Reasons) -> None:
    groups = [
        group([0, 0.5, 1], [-1, 0, 1], [-(1 + step), 0, 1 + step], step=step, name=f"{step}{number}:agent")
        for step in range(2)
        for number in range(2)
    ]
    found = told(*groups, scope="role")
    assert found["scale"].endswith("It is the same for all groups of a step.")
    assert "depends on all groups of its role in the step under b, on its own group alone under a" in found["scope"]
    assert "there are 2 per step" in found["scope"]


def test_another_baseline_is_told_with_the_group_where_it_is_furthest(
    group: Callable[..., ScoredGroup], told: Reasons
) -> None:
    rewards = np.array([0.0, 1.0])
    near = group(rewards, rewards - 0.5, rewards - 0.4, name="near:agent")
    far = group(rewards, rewards - 0.5, rewards - 0.1, name="far:agent", lengths=np.array([9, 1]))
    text = told(near, far)["baseline"]
    assert "in 2 of 2 groups, most in group 'far:agent' of step 0: 0.1 under b, 0.5 under a" in text
    assert "lengths are 1 to 9" in text


def test_groups_of_one_are_told_with_what_each_gives(group: Callable[..., ScoredGroup], told: Reasons) -> None:
    found = told(group([0.7], [0.7], [0.0]), group([0.2], [0.2], [0.0]))
    assert found == {"singletons": "2 of 2 groups of one trajectory differ: a gives the reward itself; b gives 0."}


def test_groups_of_equal_rewards_are_told_with_what_each_gives(
    group: Callable[..., ScoredGroup], told: Reasons
) -> None:
    found = told(group([1, 1], [0, 0], [-0.25, -0.25]), group([1, 1], [0, 0], [0, 0]))
    assert found == {
        "equal_rewards": "1 of 2 groups whose rewards are all equal differ: a gives 0; b gives -0.25 to 0."
    }


def test_signal_lost_though_rewards_differ_is_told(group: Callable[..., ScoredGroup], told: Reasons) -> None:
    assert "b gives 0 to 1 of 1 groups though their rewards differ" in told(group([0, 1], [-1, 1], [0, 0]))["silenced"]


def test_what_is_not_linear_in_the_reward_is_told(group: Callable[..., ScoredGroup], told: Reasons) -> None:
    text = told(group([0, 0.5, 1], [-1, 0, 1], [0, 0, 1]))["bent"]
    assert "b the advantage is not linear in the reward in 1 of 1 groups" in text
    assert "0 for 2 of 3 trajectories" in text


def test_advantages_that_follow_the_length_are_found_out(group: Callable[..., ScoredGroup], told: Reasons) -> None:
    lengths = np.array([2, 4, 6, 8])
    found = told(group([0, 0, 1, 1], [-1, -1, 1, 1], [-0.2, -0.4, 0.6, 0.8], lengths=lengths))
    assert "equal rewards of one group get different advantages in 1 of 1 groups" in found["beyond_reward"]


def test_division_by_the_turns_of_a_trajectory_is_found_out(group: Callable[..., ScoredGroup], told: Reasons) -> None:
    turns, rewards = np.array([1, 2, 5]), np.array([0, 0.5, 1])
    groups = [group(rewards, rewards - 0.5, (rewards - 0.5) / turns, turns=turns)]
    assert law_of(groups, facts_of(groups), 1).formula == "(reward - group mean) / turns"
    assert told(*groups) == {"share": "Each trajectory's advantage is divided by its turns under b."}


def test_levels_are_told_by_how_much_varies_within(group: Callable[..., ScoredGroup], told: Reasons) -> None:
    varied = group([0, 1], [-1, 1], [-1, 1], deviations=np.array([[0, 0], [0.5, 0]]))
    assert told(varied, level="token")["level"] == (
        "b gives one advantage per token; they differ within 1 of 2 trajectories, by a standard deviation of 0.25 on "
        "average."
    )


@pytest.mark.parametrize(
    ("rewards", "a", "b", "said"),
    [
        ([0.5], [0.5], [0], "a group of one"),
        ([0.5, 0.5], [0, 0], [1, 1], "all rewards are 0.5"),
        ([0, 1], [-1, 1], [-2, 2], "slope 4, not 2 (std 0.5)"),
        ([0, 1], [-0.5, 0.5], [0, 1], "baseline 0, not 0.5"),
        ([0, 1, 2], [-1, 0, 1], [0, 0, 1], "not both linear in the reward; lengths all 4"),
    ],
)
def test_why_one_group_differs_is_said_in_a_few_words(
    group: Callable[..., ScoredGroup], rewards: list[float], a: list[float], b: list[float], said: str
) -> None:
    groups = [group(rewards, a, b)]
    assert why(groups[0], 0, facts_of(groups), *_sides(groups, {})) == said
