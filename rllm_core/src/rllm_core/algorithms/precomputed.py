"""Advantages that a workflow set on its steps: finds them, checks them and arranges them like the tokens of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms.columns import mark_tokens
from rllm_core.algorithms.estimation import PrecomputedAdvantages
from rllm_core.data.batch import TokenBatch
from rllm_core.data.types import Step, TrajectoryGroup
from rllm_core.errors import AdvantageError

OnMismatch = Literal["error", "zero"]
LARGEST = float(np.finfo(np.float32).max)


class StepAdvantages(NamedTuple):
    """The advantages found in the steps of a batch."""

    precomputed: PrecomputedAdvantages
    mismatched_steps: int
    """Number of steps that got 0 because their advantage is unusable."""


def groups_with_advantages(groups: Sequence[TrajectoryGroup]) -> NDArray[np.bool_]:
    """Return an array, (n_group,), that is True for groups in which any step has an advantage."""
    return np.array(
        [
            any(step.advantage is not None for trajectory in group.trajectories for step in trajectory.steps)
            for group in groups
        ],
        np.bool_,
    )


def find_step_advantages(batch: TokenBatch, on_mismatch: OnMismatch) -> StepAdvantages:
    """Return the advantages in the steps of a batch, for its tokens.

    A step's advantage is one number for all its sampled tokens, or one number per token.

    Args:
        on_mismatch: what to do with an unusable step of such a group. A step is unusable if it sampled tokens and has
            no advantage, if the number of advantages differs from its number of tokens, or if an advantage is not
            finite in float32. ``zero`` gives it 0.

    Raises:
        AdvantageError: such a step exists and `on_mismatch` is ``error``.
    """
    chosen = groups_with_advantages(batch.groups)
    mismatched = 0
    # The batch has its tokens in the order of trajectories and, within one, in the order of its buffer. This may differ
    # from the order of the steps.
    pieces: list[NDArray[np.float64]] = []
    for group, wanted in zip(batch.groups, chosen, strict=True):
        if not wanted:
            continue
        for index, trajectory in enumerate(group.trajectories):
            for step in sorted(trajectory.steps, key=lambda step: step.span.response_start):
                length = step.span.end - step.span.response_start
                values, problem = _values(step, length)
                if problem and on_mismatch == "error":
                    raise _error(group, index, step, problem)
                mismatched += bool(problem)
                pieces.append(np.zeros(length) if problem else values)
    advantages = np.zeros(len(batch.tokens), np.float32)
    if pieces:
        advantages[mark_tokens(batch, chosen) & batch.loss_mask] = np.concatenate(pieces)
    return StepAdvantages(PrecomputedAdvantages(groups=chosen, advantages=advantages), mismatched)


def _values(step: Step, length: int) -> tuple[NDArray[np.float64], str]:
    """Return the advantages of a step's tokens, (length,), and a description of the problem, empty if there is no
    problem."""
    nothing = np.empty(0)
    if step.advantage is None:
        return nothing, f"has no advantage for its {_tokens(length)}" if length else ""
    try:
        given = np.asarray(step.advantage, np.float64)
    except (TypeError, ValueError):
        return nothing, f"has the advantage {step.advantage!r:.80}, which is neither a number nor a list of numbers"
    if given.ndim > 1:
        return nothing, f"has advantages of shape {given.shape} for its {_tokens(length)}"
    if given.ndim == 1 and len(given) != length:
        return nothing, f"has {len(given)} advantages for its {_tokens(length)}"
    if not (np.abs(given) <= LARGEST).all():
        return nothing, "has an advantage that is NaN or infinite in float32"
    return np.broadcast_to(given, length), ""


def _tokens(length: int) -> str:
    return f"{length} response token{'' if length == 1 else 's'}"


def _error(group: TrajectoryGroup, index: int, step: Step, problem: str) -> AdvantageError:
    trajectory = group.trajectories[index]
    position = next(number for number, other in enumerate(trajectory.steps) if other is step)
    entry = group.metadata[index] if group.metadata else {}
    known = {"task_id", "rollout_idx"} <= entry.keys()
    episode = f" (episode '{entry['task_id']}:{entry['rollout_idx']}')" if known else ""
    return AdvantageError(
        "bad-precomputed-advantages",
        f"Group {group.group_id!r} has precomputed advantages, and step {position} of its trajectory {index}{episode} "
        f"{problem}.",
        "In the workflow, set `step.advantage` of every step of the group to one number, or to one per response token. "
        "Or set rllm.algorithm.on_precomputed_mismatch=zero.",
    )
