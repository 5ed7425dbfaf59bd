"""Leaves of a tree share their beginnings, and are ordinary rollouts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from character_engine import CharacterEngine
from expecting import expect_error
from rollout_context import context_of
from tree_policy import TableEngine, TablePolicy, roll_out, tokens_of

from rllm.builtin.environments.number_games import NUMBERS, Guess, GuessParams
from rllm.builtin.tree_rollouts.workflow import TreeParams, TreeWorkflow, first_tokens, join
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.environment import Environment, Outcome
from rllm_core.data.types import Episode, Trajectory
from rllm_core.data.version_spans import VersionSpan
from rllm_core.errors import ConfigError
from rllm_core.rollout.runner import PerRolloutEngine
from rllm_core.rollout.workflows import MultiTurnWorkflow

DIGITS = TablePolicy("0123456789")


def guess() -> Environment:
    return Guess(GuessParams(prompt="guess"))


def search(prompt: str) -> str:
    """Return the next guess of a binary search."""
    low, high = 0, NUMBERS - 1
    for number, direction in re.findall(r"(\d+)[^\d]*(lower|higher)", prompt):
        low, high = (low, int(number) - 1) if direction == "lower" else (int(number) + 1, high)
    return f"{(low + max(low, high)) // 2}$"


def count_calls(share: float, number: int, **options: int) -> tuple[int, int]:
    """Return the calls and the leaves of a tree, if this share of the guesses is random."""

    def answer(prompt: str, sampling: SamplingParams) -> str:
        random = np.random.default_rng(sampling.seed)
        return f"{random.integers(2 * NUMBERS)}$" if random.random() < share else search(prompt)

    engine = CharacterEngine(answer)
    context = context_of(PerRolloutEngine(engine), make_environment=guess, max_steps=5, max_prompt_length=1000)
    episode = asyncio.run(TreeWorkflow(context, **options).run({"number": number}, f"{number}:0"))
    assert episode.metrics.get("calls", len(engine.prompts)) == len(engine.prompts)
    return len(engine.prompts), len(episode.trajectories)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_leaf_needs_fewer_calls_than_rollout(share: float) -> None:
    trees = [count_calls(share, number) for number in range(NUMBERS)]
    flat = [count_calls(share, number, leaves=1) for number in range(NUMBERS)]
    calls, leaves = map(sum, zip(*trees, strict=True))
    assert calls / leaves <= 0.6 * sum(calls for calls, _ in flat) / NUMBERS


def test_leaves_share_tokens_before_their_fork() -> None:
    leaves = roll_out(DIGITS, DIGITS.sample, guess, task={"number": 3}, leaves=8).trajectories
    assert [leaf.info["branch"]["forks"] for leaf in leaves[:3]] == [
        [[1, 0, 0], [2, 0, 0], [3, 0, 0]],
        [[1, 0, 0], [2, 0, 0], [3, 0, 1]],
        [[1, 0, 0], [2, 0, 1], [3, 0, 0]],
    ]
    for one, other in pairwise(leaves):
        pairs = zip(one.info["branch"]["forks"], other.info["branch"]["forks"], strict=False)
        fork = next(forks[0][0] for forks in pairs if forks[0] != forks[1])
        assert [*tokens_of(one)][:fork] == [*tokens_of(other)][:fork]
    assert len({leaf.uid for leaf in leaves}) == len(leaves)


def test_first_leaf_equals_rollout_without_forks() -> None:
    fields = {"make_environment": guess, "max_response_length": 1, "max_steps": 5}
    context = context_of(TableEngine(policy=DIGITS, draw=DIGITS.sample), **fields)
    flat = asyncio.run(MultiTurnWorkflow(context).run({"number": 3}, "t:0"))
    tree = roll_out(DIGITS, DIGITS.sample, guess, task={"number": 3})
    assert describe(tree.trajectories[0]) == describe(flat.trajectories[0])
    assert (tree.termination_reason, tree.is_correct) == (flat.termination_reason, flat.is_correct)
    validation = roll_out(DIGITS, DIGITS.sample, guess, {"label": "val"}, {"number": 3})
    assert [*map(describe, validation.trajectories)] == [*map(describe, flat.trajectories)]
    assert validation.metrics == flat.metrics


def describe(leaf: Trajectory) -> Any:
    rewards = [leaf.reward, *(step.reward for step in leaf.steps)]
    return leaf.uid, rewards, [*tokens_of(leaf)], leaf.tokens.logprobs.tobytes()


def test_metrics_are_weighted_by_shares() -> None:
    script = iter("3012456701245670124567012456")

    episode = roll_out(DIGITS, lambda *_: next(script), guess, task={"number": 3}, leaves=4)
    assert [leaf.reward for leaf in episode.trajectories] == [1.0]
    assert episode.metrics == {"guesses": 1.0, "leaves": 1.0, "calls": 1.0}
    script = iter("0" + "31" + "11" + "11" + "11")
    episode = roll_out(DIGITS, lambda *_: next(script), guess, task={"number": 3}, leaves=4)
    assert [leaf.reward for leaf in episode.trajectories] == [0.9, 0.0, 0.0]
    assert episode.metrics == {"guesses": (2 + 5) / 2, "leaves": 3.0, "calls": 9.0}


def test_response_forks_after_surprising_tokens() -> None:
    policy = TablePolicy("01")
    context = {"max_response_length": 6, "max_steps": 1, "sampling": SamplingParams(max_tokens=6, seed=1)}
    episode = roll_out(policy, policy.sample, guess, context, {"number": 3}, fork_surprisal=0.6)
    forks = [leaf.info["branch"]["forks"] for leaf in episode.trajectories]
    assert len(forks) == len({str(each) for each in forks}) > 2
    for leaf, path in zip(episode.trajectories, forks, strict=True):
        tokens = [*tokens_of(leaf)]
        assert len(tokens) == 6
        np.testing.assert_allclose(leaf.steps[0].logprobs, [np.log(policy.probability(*each[1:])) for each in tokens])
        assert all(leaf.steps[0].logprobs[token - 1] <= -0.6 for _, token, _ in path)


class Random(Environment):
    """An environment that gives a different number each time."""

    number = 0

    def reset(self, task: Mapping[str, Any]) -> str:
        return "begin"

    def step(self, action: str) -> Outcome:
        Random.number += 1
        shown, paid = (Random.number, 0) if action == "0" else (0, Random.number)
        return Outcome(observation=f"see {shown}", reward=paid)


@pytest.mark.parametrize(("token", "what"), [("0", "gave a different prompt for call 2"), ("1", "gave reward")])
def test_environment_with_hidden_state_is_rejected(token: str, what: str) -> None:
    with expect_error(ConfigError, "environment-not-repeatable", what):
        roll_out(DIGITS, lambda *_: token, Random)


class CountingGuess(Guess):
    """The game, with the number of open environments. It may fail."""

    open = 0

    def __init__(self, fails: bool) -> None:
        super().__init__(GuessParams(prompt="guess"))
        self._fails = fails
        CountingGuess.open += 1

    def step(self, action: str) -> Outcome:
        if self._fails:
            raise RuntimeError("broken")
        return super().step(action)

    def close(self) -> None:
        CountingGuess.open -= 1


def test_failed_leaf_ends_the_tree() -> None:
    made: list[bool] = []

    def environment() -> Environment:
        made.append(len(made) == 2)
        return CountingGuess(made[-1])

    with pytest.raises(RuntimeError, match="broken"):
        roll_out(DIGITS, lambda *_: "9", environment, task={"number": 3})
    assert CountingGuess.open == 0 and len(made) > 2


def test_timeout_keeps_the_leaves() -> None:
    async def run() -> Episode | None:
        engine = CharacterEngine(lambda prompt, sampling: hang() if prompt.count("lower") == 3 else now())
        workflow = TreeWorkflow(
            context_of(engine, make_environment=guess, max_steps=5, max_prompt_length=1000), leaves=8
        )
        rollout = asyncio.ensure_future(workflow.run({"number": 3}, "t:0"))
        while len(engine.prompts) < 1 + 2 + 4 + 8:
            await asyncio.sleep(0)
        rollout.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rollout
        return workflow.episode

    async def hang() -> str:
        await asyncio.Event().wait()
        return ""

    async def now() -> str:
        return "9$"

    episode = asyncio.run(run())
    assert episode is not None and len(episode.trajectories) == 8
    assert all(len(leaf.steps) == 3 and "branch" in leaf.info for leaf in episode.trajectories)


def completion(versions: list[int], finish: Any = "stop") -> Completion:
    spans = tuple(VersionSpan(version, 1) for version in versions)
    numbers = np.arange(len(versions))
    return Completion(
        token_ids=numbers.astype(np.int32),
        logprobs=numbers.astype(np.float32),
        finish_reason=finish,
        weight_version=min(versions),
        version_spans=spans,
    )


def test_continued_response_has_the_version_of_each_token() -> None:
    begun = first_tokens(completion([3, 3, 4, 5]), 3)
    assert (begun.weight_version, begun.version_spans) == (3, ((3, 2), (4, 1)))
    whole = join(begun, completion([4, 6], "length"))
    assert (whole.weight_version, whole.version_spans) == (3, ((3, 2), (4, 2), (6, 1)))
    assert (whole.token_ids.tolist(), whole.finish_reason) == ([0, 1, 2, 0, 1], "length")


def test_options_are_those_of_the_constructor() -> None:
    own = TreeParams().model_dump()
    assert {name: own[name] for name in TreeWorkflow.__init__.__kwdefaults__} == TreeWorkflow.__init__.__kwdefaults__
