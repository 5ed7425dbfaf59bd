"""Tree rollouts of a table policy, which has a logit for each token after each text, and the gradient of its logits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from character_engine import CharacterEngine
from numpy.typing import NDArray
from rollout_context import context_of

from rllm.builtin.tree_rollouts.estimator import tree
from rllm.builtin.tree_rollouts.workflow import TreeWorkflow
from rllm_core.algorithms.columns import build_estimator_input
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.environment import Environment
from rllm_core.contracts.params import NoParams
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Episode, Trajectory, TrajectoryGroup
from rllm_core.updates.aggregation import token_weights

Gradient = dict[str, NDArray[np.float64]]
"""Gradient of the logits, by the text before the token."""
Draw = Callable[[str, int], str]
"""Chooses the token after a text, given the seed of the call."""


@dataclass
class TablePolicy:
    """A policy over some tokens, with random logits for each text."""

    tokens: str
    logits: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    def probabilities(self, text: str) -> NDArray[np.float64]:
        """Return (n_token,) the distribution of the next token."""
        if text not in self.logits:
            self.logits[text] = np.random.default_rng([*map(ord, text)]).normal(size=len(self.tokens))
        weights = np.exp(self.logits[text])
        result: NDArray[np.float64] = weights / weights.sum()
        return result

    def probability(self, text: str, token: str) -> float:
        """Return the probability of a token after a text."""
        return float(self.probabilities(text)[self.tokens.index(token)])

    def sample(self, text: str, seed: int) -> str:
        """Return a token of the policy."""
        random = np.random.default_rng([seed, *map(ord, text)])
        return self.tokens[random.choice(len(self.tokens), p=self.probabilities(text))]

    def grad_logprob(self, text: str, token: str) -> NDArray[np.float64]:
        """Return (n_token,) the gradient of the token's log-prob, of the logits after this text."""
        one_hot = np.arange(len(self.tokens)) == self.tokens.index(token)
        return one_hot - self.probabilities(text)


@dataclass(kw_only=True)
class TableEngine(CharacterEngine):
    """An engine that samples as many tokens as it may, with the log-probs of the policy."""

    answer: Any = None
    policy: TablePolicy
    draw: Draw

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        start = text = "".join(map(chr, prompt_ids))
        for _ in range(sampling.max_tokens):
            text += self.draw(text, sampling.seed)
        self.answer = lambda prompt, sampling: text.removeprefix(start)
        completion = await super().generate(prompt_ids, sampling, session=session)
        places = range(len(start), len(text))
        logprobs = [np.log(self.policy.probability(text[:place], text[place])) for place in places]
        return replace(completion, logprobs=np.array(logprobs, np.float32))


def roll_out(
    policy: TablePolicy,
    draw: Draw,
    environment: Callable[[], Environment],
    context: dict[str, Any] | None = None,
    task: dict[str, Any] | None = None,
    uid: str = "t:0",
    **options: Any,
) -> Episode:
    """Run one tree, whose responses have one token unless `context` changes it. `options` are those of the workflow."""
    engine = TableEngine(policy=policy, draw=draw)
    fields = {"make_environment": environment, "max_response_length": 1, "max_steps": 5} | (context or {})
    workflow = TreeWorkflow(context_of(engine, **fields), **options)
    return asyncio.run(workflow.run(task or {}, uid))


def tokens_of(leaf: Trajectory) -> Iterator[tuple[int, str, str]]:
    """Yield the number of the step, the text before the token and the token, for each sampled token."""
    for number, step in enumerate(leaf.steps):
        text = "".join(map(chr, step.prompt_ids))
        for token in map(chr, step.response_ids):
            yield number, text, token
            text += token


def gradient_of(policy: TablePolicy, groups: Sequence[Sequence[Episode]]) -> Gradient:
    """Return the gradient with the estimator `tree` and ``loss_agg_mode=seq-mean-token-sum``, as from a backend's rows.

    A group is a list of trees.
    """
    made = [
        TrajectoryGroup(group_id=f"{number}:agent", trajectories=[leaf for each in trees for leaf in each.trajectories])
        for number, trees in enumerate(groups)
    ]
    inputs = build_estimator_input(build_batch(made), np.ones(len(made), np.bool_))
    advantages = tree(inputs, NoParams()).values[inputs.loss_mask]
    weights = token_weights("seq-mean-token-sum", inputs.response_lengths, 1).astype(np.float64)
    sampled = [each for group in made for leaf in group.trajectories for each in tokens_of(leaf)]
    result: Gradient = {}
    for (_, text, token), advantage, weight in zip(sampled, advantages, weights, strict=True):
        add(result, text, weight * advantage * policy.grad_logprob(text, token))
    return result


def add(gradient: Gradient, text: str, value: NDArray[np.float64]) -> None:
    """Add to the gradient of the logits after this text."""
    gradient[text] = gradient.get(text, np.zeros(len(value))) + value


def difference(one: Gradient, other: Gradient) -> float:
    """Return the largest difference, relative to the largest number of `other`."""
    largest = max(np.abs(value).max() for value in other.values())
    nothing = np.zeros(1)
    return float(
        max(np.abs(one.get(text, nothing) - other.get(text, nothing)).max() for text in one.keys() | other.keys())
        / largest
    )
