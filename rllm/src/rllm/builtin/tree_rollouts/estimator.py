"""The estimator `tree`: the advantage of a segment comes from the leaves below it."""

from __future__ import annotations

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from rllm.builtin.tree_rollouts.branch import Branch, Segment, join_paths
from rllm_core.algorithms import segments as pieces
from rllm_core.algorithms.columns import step_of_sampled
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_core.contracts.params import NoParams

TOKENS_PER_STEP = 1 << 32
"""Larger than any number of tokens in a step, so that a step and a token have one number."""


def tree(inputs: AdvantageInput, params: NoParams) -> Advantages:
    """Compute A(c) = V(c) - b(c) for each segment c, (n_token,).

    V of a leaf is its reward, and V before a fork is the mean of V of its k continuations. b(c) is the mean of k - 1
    values of the other continuations and of b of the segment before the fork. The first segments of a group's trees are
    continuations of its prompt. Their b is the mean of the other trees, and 0 if a group has only one tree. So rollouts
    without forks get the advantages of `rloo`. Each row has the weight share * rows / trees of the role, with share =
    product of 1 / k over the forks of its path.

    A shared token is in several rows, and their shares add up to the share of its segment. So the gradient is unbiased:

    1. Forks are chosen by the tokens before them, so their k continuations are independent samples of the policy.
    2. By induction from the leaves, E[V(c)] = Q(c), the expected reward of a rollout that contains c.
    3. b(c) does not depend on c, and E[grad log p(c)] = 0, so E[A(c) grad log p(c)] = E[Q(c) grad log p(c)].
    4. The k continuations, each with 1 / k of the share before, have the expectation of one plain rollout.
    5. So E[sum of share * A * grad log p] = E[sum of Q * grad log p over a plain rollout] = grad E[reward].

    This needs equal weights of rows, so any ``loss_agg_mode`` except ``seq-mean-token-mean``.

    Trees with V and a local and a global baseline: TreeRL (arXiv:2506.11902), TreePO (arXiv:2508.17445) and Tree-GRPO
    (arXiv:2509.21240). V as a mean of continuations: TreeRPO (arXiv:2506.05183). A mean of leaves is biased if branches
    end early.
    """
    trajectories = [trajectory for group in inputs.groups for trajectory in group.trajectories]
    branches = [Branch.read_from(each) or Branch(f"{number}") for number, each in enumerate(trajectories)]
    chains: list[list[tuple[float, float]]] = [[] for _ in trajectories]
    shares = np.ones(len(trajectories))
    trees = 0
    for first, last in zip(inputs.group_offsets[:-1].tolist(), inputs.group_offsets[1:].tolist(), strict=True):
        members: dict[str, list[int]] = {}
        for leaf in range(first, last):
            members.setdefault(branches[leaf].tree, []).append(leaf)
        roots = [join_paths(branches, leaves) for leaves in members.values()]
        for leaf, share in chain.from_iterable(root.leaf_shares() for root in roots):
            shares[leaf] = share
        _compare(roots, [], inputs.rewards, chains)
        trees += len(roots)
    weights = shares * (len(trajectories) / max(trees, 1))
    values = np.zeros(len(inputs.loss_mask))
    values[inputs.loss_mask] = _spread(inputs, branches, chains, weights)
    baselines = np.array([chain[-1][1] for chain in chains], np.float64)
    return Advantages(values=values, level="token", baselines=baselines)


def _compare(
    continuations: list[Segment] | tuple[Segment, ...],
    before: list[float],
    rewards: NDArray[np.float64],
    chains: list[list[tuple[float, float]]],
) -> None:
    """Add value and baseline of these segments, and of all segments after them, to the chain of each of their leaves.

    `before` has the baseline of the segment before the fork. It is empty for the first segments.
    """
    values = [_value(each, rewards) for each in continuations]
    for number, segment in enumerate(continuations):
        baseline = _mean([*values[:number], *values[number + 1 :], *before] or [0.0])
        for leaf in segment.leaves:
            chains[leaf].append((values[number], baseline))
        _compare(segment.next, [baseline], rewards, chains)


def _value(segment: Segment, rewards: NDArray[np.float64]) -> float:
    return _mean([_value(each, rewards) for each in segment.next] or rewards[list(segment.leaves)].tolist())


def _mean(values: list[float]) -> float:
    """Return the mean. It is exactly the value if all are equal."""
    return values[0] if min(values) == max(values) else pieces.mean(np.array(values))


def _spread(
    inputs: AdvantageInput,
    branches: list[Branch],
    chains: list[list[tuple[float, float]]],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return (n_sampled,) weight * (value - baseline) of each sampled token's segment."""
    steps = step_of_sampled(inputs)
    starts = np.flatnonzero(np.diff(steps, prepend=-1))
    tokens = np.arange(len(steps)) - np.repeat(starts, np.diff(starts, append=len(steps)))
    ends = np.cumsum(inputs.response_lengths)
    values = np.empty(len(steps))
    for number, (end, length) in enumerate(zip(ends.tolist(), inputs.response_lengths.tolist(), strict=True)):
        own = slice(end - length, end)
        places = (steps[own] - inputs.step_offsets[number]) * TOKENS_PER_STEP + tokens[own]
        forks = [fork.step * TOKENS_PER_STEP + fork.token for fork in branches[number].forks]
        advantages = weights[number] * np.array([value - baseline for value, baseline in chains[number]])
        values[own] = advantages[np.searchsorted(forks, places, side="right")]
    return values
