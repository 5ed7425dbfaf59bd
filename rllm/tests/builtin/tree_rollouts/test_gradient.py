"""The gradient of trees is exact in expectation, and equals the gradient of their enumerated leaves."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tree_policy import Gradient, TablePolicy, add, difference, gradient_of, roll_out, tokens_of

from rllm.builtin.environments.number_games import Guess, GuessParams
from rllm_core.contracts.engine import SamplingParams
from rllm_core.contracts.environment import Environment, Outcome
from rllm_core.data.types import Episode, Trajectory
from rllm_core.seeding import derive_seed

REWARDS = {"1": 0.9, "01": 0.2, "001": 1.0, "000": -0.5}
"""Rewards of finished games. A game ends with 1, or after three turns."""
TEXTS = {"000": 0.3, "001": -0.2, "010": 0.0, "011": 1.0, "100": 0.1, "101": 0.8, "110": -1.0, "111": 0.5}
"""Rewards of responses with three tokens."""


class Game(Environment):
    """A game that pays when the actions so far are in its table, and then ends."""

    def __init__(self, rewards: Mapping[str, float]) -> None:
        self._rewards = rewards
        self._actions = ""

    def reset(self, task: Mapping[str, Any]) -> str:
        return ""

    def step(self, action: str) -> Outcome:
        self._actions += action
        return Outcome(reward=self._rewards.get(self._actions, 0.0), done=self._actions in self._rewards)


def enumerate_trees(
    policy: TablePolicy, rewards: Mapping[str, float], length: int, **options: Any
) -> Iterator[tuple[float, Episode]]:
    """Yield each possible tree with its probability. Branches that end early have fewer leaves."""
    script: list[str] | None = []
    while script is not None:
        drawn: list[str] = []
        probability = 1.0

        def draw(text: str, seed: int, script: list[str] = script, drawn: list[str] = drawn) -> str:
            nonlocal probability
            drawn.append(script[len(drawn)] if len(drawn) < len(script) else policy.tokens[0])
            probability *= policy.probability(text, drawn[-1])
            return drawn[-1]

        episode = roll_out(policy, draw, lambda: Game(rewards), {"max_response_length": length}, **options)
        yield probability, episode
        while drawn and drawn[-1] == policy.tokens[-1]:
            drawn.pop()
        script = [*drawn[:-1], policy.tokens[policy.tokens.index(drawn[-1]) + 1]] if drawn else None


def expected_gradient(policy: TablePolicy, trees: int, outcomes: Sequence[tuple[float, Episode]]) -> Gradient:
    """Return the mean gradient of the estimator over all batches with this number of trees of one task."""
    assert sum(probability for probability, _ in outcomes) == pytest.approx(1.0)
    result: Gradient = {}
    for places in np.ndindex(*[len(outcomes)] * trees):
        probability = float(np.prod([outcomes[place][0] for place in places]))
        episodes = [rename(outcomes[place][1], f"t:{number}") for number, place in enumerate(places)]
        for text, value in gradient_of(policy, [episodes]).items():
            add(result, text, probability * value)
    return result


def rename(episode: Episode, tree: str) -> Episode:
    """Return a copy of the episode with a different name of its tree."""
    made = copy.deepcopy(episode)
    for trajectory in made.trajectories:
        trajectory.info["branch"]["tree"] = tree
    return made


def exact_gradient(policy: TablePolicy, rewards: Mapping[str, float], length: int) -> Gradient:
    """Return the gradient of the expected reward, by differentiating the sum over all games."""
    logits = {text: torch.tensor(values, requires_grad=True) for text, values in policy.logits.items()}
    total = torch.zeros((), dtype=torch.float64)
    for actions, reward in rewards.items():
        tokens = iter(actions)
        game = roll_out(
            policy,
            lambda *_, tokens=tokens: next(tokens),
            lambda: Game(rewards),
            {"max_response_length": length},
            leaves=1,
        )
        logprobs = [
            logits[text].log_softmax(0)[policy.tokens.index(token)]
            for _, text, token in tokens_of(game.trajectories[0])
        ]
        total = total + reward * torch.stack(logprobs).sum().exp()
    total.backward()
    return {text: tensor.grad.numpy() for text, tensor in logits.items() if tensor.grad is not None}


@pytest.mark.parametrize(
    ("trees", "rewards", "length", "options"),
    [
        (1, REWARDS, 1, {"leaves": 1}),
        (1, REWARDS, 1, {"leaves": 3}),
        (1, REWARDS, 1, {"leaves": 4}),
        (1, REWARDS, 1, {"leaves": 3, "branches": 3}),
        (2, REWARDS, 1, {"leaves": 2}),
        (1, TEXTS, 3, {"leaves": 4, "fork_surprisal": 0.6}),
    ],
)
def test_expected_gradient_of_trees_is_exact(
    trees: int, rewards: Mapping[str, float], length: int, options: dict[str, Any]
) -> None:
    policy = TablePolicy("01")
    outcomes = [*enumerate_trees(policy, rewards, length, **options)]
    numbers = {len(episode.trajectories) for _, episode in outcomes}
    assert numbers == {1} if options["leaves"] == 1 else len(numbers) > 1
    expected = expected_gradient(policy, trees, outcomes)
    assert difference(expected, exact_gradient(policy, rewards, length)) < 1e-6


def guess_tree(policy: TablePolicy, number: int, uid: str, **options: int) -> Episode:
    context = {"sampling": SamplingParams(max_tokens=1, seed=derive_seed(0, uid))}
    return roll_out(
        policy, policy.sample, lambda: Guess(GuessParams(prompt="guess")), context, {"number": number}, uid, **options
    )


def gradient_of_leaves(policy: TablePolicy, groups: Sequence[Sequence[Episode]]) -> Gradient:
    """Return the mean gradient of trees in which each leaf is a row with its own reward, minus the baseline there."""
    result: Gradient = {}
    trees = sum(map(len, groups))
    for group in groups:
        leaves = [leaf for tree in group for leaf in tree.trajectories]
        shares = {leaf.uid: share_of(leaf, leaves) for leaf in leaves}
        for leaf in leaves:
            for turn, text, token in tokens_of(leaf):
                depth = max(depth for depth, fork in enumerate(path(leaf)) if fork[0] <= turn)
                own = shares[leaf.uid] * (reward_of(leaf) - baseline_at(depth, leaf, leaves, shares)) / trees
                add(result, text, own * policy.grad_logprob(text, token))
    return result


def baseline_at(depth: int, leaf: Trajectory, leaves: Sequence[Trajectory], shares: Mapping[str, float]) -> float:
    """Return the baseline after this number of forks: the mean over other branches and of the baseline before."""
    if depth < 0:
        return 0.0
    branches: dict[str, list[Trajectory]] = {}
    for each in leaves:
        if path(each)[:depth] == path(leaf)[:depth] and path(each)[depth] != path(leaf)[depth]:
            branches.setdefault(str(path(each)[depth]), []).append(each)
    values = [
        np.average([reward_of(each) for each in below], weights=[shares[each.uid] for each in below])
        for below in branches.values()
    ]
    return float(np.mean([*values, baseline_at(depth - 1, leaf, leaves, shares)] if depth else values))


def reward_of(leaf: Trajectory) -> float:
    assert leaf.reward is not None
    return leaf.reward


def path(leaf: Trajectory) -> list[list[Any]]:
    return [[0, 0, leaf.info["branch"]["tree"]], *leaf.info["branch"]["forks"]]


def share_of(leaf: Trajectory, leaves: Sequence[Trajectory]) -> float:
    """Return 1 / the number of continuations, multiplied over the forks of a leaf's path."""
    share = 1.0
    for depth in range(1, len(path(leaf))):
        share /= len({str(path(each)[depth]) for each in leaves if path(each)[:depth] == path(leaf)[:depth]})
    return share


@pytest.mark.parametrize("options", [{"leaves": 8}, {"leaves": 7, "branches": 3}, {"leaves": 1}])
def test_gradient_on_guess_equals_enumerated_leaves(options: dict[str, int]) -> None:
    policy = TablePolicy("0123456789")
    groups = [
        [guess_tree(policy, number, f"{number}:{rollout}", **options) for rollout in range(3)] for number in (3, 7)
    ]
    assert len({len(tree.trajectories) for group in groups for tree in group}) > 1 or options["leaves"] == 1
    assert difference(gradient_of(policy, groups), gradient_of_leaves(policy, groups)) < 1e-6
