"""An estimator's formula is found out from its numbers, whatever its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rllm_view.rescoring.facts import facts_of
from rllm_view.rescoring.laws import Law, law_of
from rllm_view.rescoring.scores import ScoredGroup

Floats = NDArray[np.float64]
GENERATOR = np.random.default_rng(5)
REWARDS = [GENERATOR.integers(0, 5, size=GENERATOR.integers(3, 9)) / 4 for _ in range(12)]
LENGTHS = [GENERATOR.integers(1, 30, size=len(rewards)) for rewards in REWARDS]
STEPS = [index // 4 for index in range(12)]


def _pooled(function: Callable[[Floats, NDArray[np.int64]], float]) -> list[float]:
    """A figure of all rewards and lengths of each group's step."""
    return [
        function(
            np.concatenate([REWARDS[other] for other in range(12) if STEPS[other] == step]),
            np.concatenate([LENGTHS[other] for other in range(12) if STEPS[other] == step]),
        )
        for step in STEPS
    ]


ROLE_MEANS = _pooled(lambda rewards, lengths: rewards.mean())
ROLE_STDS = _pooled(lambda rewards, lengths: rewards.std())

FORMULAS: dict[str, Callable[[int, Floats, NDArray[np.int64]], Any]] = {
    "reward": lambda i, r, n: r,
    "0.5 * reward": lambda i, r, n: 0.5 * r,
    "reward - group mean": lambda i, r, n: r - r.mean(),
    "(reward - group mean) / group std": lambda i, r, n: (r - r.mean()) / (r.std() + 1e-6),
    "(reward - group mean) / group std (ddof 1)": lambda i, r, n: (r - r.mean()) / (r.std(ddof=1) + 1e-4),
    "(reward - group mean) / (1 - 1/n)": lambda i, r, n: (r - r.mean()) * len(r) / (len(r) - 1),
    "(reward - group mean) / group mean": lambda i, r, n: (r - r.mean()) / r.mean(),
    "reward - group median": lambda i, r, n: r - np.median(r),
    "reward - highest of group": lambda i, r, n: r - r.max(),
    "reward - group mean weighted by length": lambda i, r, n: r - np.average(r, weights=n),
    "(reward - role mean) / role std": lambda i, r, n: (r - ROLE_MEANS[i]) / ROLE_STDS[i],
    "(reward - group mean) / response length": lambda i, r, n: (r - r.mean()) / n,
    "3 * (reward - group mean) / group std": lambda i, r, n: 3 * (r - r.mean()) / r.std(),
    "not linear in the reward": lambda i, r, n: r**2,
    "the same for all trajectories of a group": lambda i, r, n: np.full(len(r), 0.3),
}


@pytest.fixture
def law(group: Callable[..., ScoredGroup]) -> Callable[..., Law]:
    def make(advantages: Sequence[Floats]) -> Law:
        # What is trained on is float32.
        groups = [
            group(rewards, given.astype(np.float32), step=step, lengths=lengths)
            for rewards, given, step, lengths in zip(REWARDS, advantages, STEPS, LENGTHS, strict=True)
        ]
        return law_of(groups, facts_of(groups), 0)

    return make


@pytest.mark.parametrize("formula", FORMULAS)
def test_the_formula_is_found(law: Callable[..., Law], formula: str) -> None:
    given = [FORMULAS[formula](index, r, n) for index, (r, n) in enumerate(zip(REWARDS, LENGTHS, strict=True))]
    assert law(given).formula == formula


def test_a_factor_that_only_steps_share_is_given_as_a_range(law: Callable[..., Law]) -> None:
    found = law([(1 + step) * (rewards - rewards.mean()) for rewards, step in zip(REWARDS, STEPS, strict=True)])
    assert found.formula == "[1 to 3, step by step] * (reward - group mean)"


def test_what_fits_nothing_is_given_as_ranges(law: Callable[..., Law]) -> None:
    found = law([(1 + index) * (rewards - 7 - index) for index, rewards in enumerate(REWARDS)])
    assert found.formula == "[1 to 12, group by group] * (reward - [7 to 18, group by group])"


def test_a_law_says_how_many_groups_it_is_about(group: Callable[..., ScoredGroup]) -> None:
    groups = [group([0, 1], [0, 1]), group([0, 0.5, 1], [0, 0, 1]), group([1, 1], [1, 1]), group([1], [1])]
    law = law_of(groups, facts_of(groups), 0)
    assert (law.fits, law.of) == (1, 2)
    assert law.formula == "not linear in the reward"


def test_without_differing_rewards_there_is_no_law(group: Callable[..., ScoredGroup]) -> None:
    groups = [group([1, 1], [0, 0]), group([1], [1])]
    law = law_of(groups, facts_of(groups), 0)
    assert (law.formula, law.of) == ("no group has differing rewards", 0)


def test_trajectories_that_sampled_nothing_do_not_count(group: Callable[..., ScoredGroup]) -> None:
    groups = [group([0, 0.5, 1], [0, np.nan, 1])]
    assert law_of(groups, facts_of(groups), 0).formula == "reward"


@pytest.mark.parametrize("size", [1e-200, 1e155, 1e250])
def test_a_formula_is_found_for_rewards_of_any_size(group: Callable[..., ScoredGroup], size: float) -> None:
    formulas = {
        "(reward - group mean) / group std": [(r - r.mean()) / r.std() for r in REWARDS],
        "(reward - role mean) / role std": [
            (r - mean) / std for r, mean, std in zip(REWARDS, ROLE_MEANS, ROLE_STDS, strict=True)
        ],
    }
    for formula, advantages in formulas.items():
        groups = [group(size * REWARDS[i], advantages[i], lengths=LENGTHS[i], step=STEPS[i]) for i in range(12)]
        ordinary = [group(REWARDS[i], advantages[i], lengths=LENGTHS[i], step=STEPS[i]) for i in range(12)]
        facts = facts_of(groups)
        assert law_of(groups, facts, 0).formula == formula
        for name in ("mean", "std", "sample_std", "role_std", "role_centred_std", "role_token_std"):
            assert np.allclose(getattr(facts, name) / size, getattr(facts_of(ordinary), name)), name
        assert [each.reward_std for each in groups] == facts.std.tolist()
