"""From groups to per-token advantages: each role's columns, its estimator, checks and broadcast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.batch import TokenBatch
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_core.errors import AdvantageError, RllmError
from rllm_core.types import Trajectory

REWARD_COMPONENTS = "reward_components"
"""Key of `Trajectory.info` under which a workflow puts the parts of a reward: a mapping of names to numbers."""

RoleEstimator = Callable[[AdvantageInput], Advantages]
"""An estimator with its options bound."""


def estimate(batch: TokenBatch, estimator_of: Callable[[str], tuple[str, RoleEstimator]]) -> NDArray[np.float32]:
    """Per-token advantages of a batch, 0 where the model sampled nothing.

    Args:
        batch: its groups carry finite rewards.
        estimator_of: role to the estimator's name (for errors) and function.

    Raises:
        AdvantageError: an estimator returned the wrong shape or a value that is not finite.
    """
    advantages = np.zeros(len(batch.tokens), np.float32)
    token_roles = np.repeat(batch.role, batch.row_lengths)
    for index, role in enumerate(batch.roles):
        name, estimator = estimator_of(role)
        tokens = token_roles == index
        inputs = role_columns(batch, index)
        try:
            result = estimator(inputs)
        except RllmError:
            raise
        except Exception as error:
            raise AdvantageError(
                f"Estimator {name!r} failed for role {role!r}: {type(error).__name__}: {error}.",
                "Its inputs are read-only; add --debug to see where it failed.",
            ) from error
        advantages[tokens] = to_tokens(inputs, result, f"estimator {name!r} for role {role!r}")
    return advantages


def divide_by_steps(batch: TokenBatch, advantages: NDArray[np.float32]) -> NDArray[np.float32]:
    """Every token's advantage divided by the number of steps of its trajectory.

    Long trajectories then weigh no more than short ones where each step counts as much (`normalize_by_steps`).
    """
    steps = np.array([len(trajectory.steps) for group in batch.groups for trajectory in group.trajectories], np.float32)
    # Trajectories without steps have no row, so none of these divisors is 0.
    return (advantages / np.repeat(steps[batch.trajectory], batch.row_lengths)).astype(np.float32)


def role_columns(batch: TokenBatch, role_index: int) -> AdvantageInput:
    """The estimator's view of one role. Arrays are made read-only: estimators must not change their inputs."""
    groups = [group for group in batch.groups if group.group_role == batch.roles[role_index]]
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    rows = batch.role == role_index
    tokens = np.repeat(rows, batch.row_lengths)
    # A trajectory may have no row (nothing sampled) or several (rewritten history), so lengths are summed by owner.
    within = _index_within_role(batch, role_index)
    lengths = np.bincount(
        within[batch.trajectory[rows]], weights=batch.row_lengths[rows], minlength=len(trajectories)
    ).astype(np.int64)
    names, components = _reward_components(trajectories)
    columns: dict[str, NDArray[Any] | None] = {
        "rewards": np.array([trajectory.reward for trajectory in trajectories], np.float64),
        "group_offsets": _offsets([len(group.trajectories) for group in groups]),
        "response_lengths": np.array([trajectory.response_length for trajectory in trajectories], np.int64),
        "step_offsets": _offsets([len(trajectory.steps) for trajectory in trajectories]),
        "step_rewards": np.array([np.nan if step.reward is None else step.reward for step in steps], np.float64),
        "token_offsets": _offsets(lengths),
        "loss_mask": batch.loss_mask[tokens],
        "sampling_logprobs": batch.sampling_logprobs[tokens],
        "reward_components": components,
    }
    for name in ("old_logprobs", "ref_logprobs", "values"):
        column = getattr(batch, name)
        columns[name] = None if column is None else column[tokens]
    for column in columns.values():
        if column is not None:
            column.flags.writeable = False
    return AdvantageInput(**columns, groups=groups, component_names=names)  # type: ignore[arg-type]


def _reward_components(trajectories: Sequence[Trajectory]) -> tuple[tuple[str, ...], NDArray[np.float64] | None]:
    """The parts of the reward that all trajectories report in ``info["reward_components"]``, and their values."""
    parts: list[Mapping[str, float]] = [trajectory.info.get(REWARD_COMPONENTS, {}) for trajectory in trajectories]
    names = tuple(sorted(set(parts[0]).intersection(*parts[1:]))) if parts else ()
    if not names:
        return (), None
    return names, np.array([[part[name] for name in names] for part in parts], np.float64)


def to_tokens(inputs: AdvantageInput, result: Advantages, who: str) -> NDArray[np.float32]:
    """Check an estimator's result and repeat it for every token it belongs to."""
    counts = {
        "trajectory": len(inputs.rewards),
        "step": len(inputs.step_rewards),
        "token": len(inputs.loss_mask),
    }
    if not isinstance(result, Advantages) or result.level not in counts:
        raise AdvantageError(
            f"{who} returned {result!r:.200}.",
            "Return Advantages(values=…, level=…); levels are " + ", ".join(counts) + ".",
        )
    try:
        values = np.asarray(result.values, np.float64)
    except (TypeError, ValueError) as error:
        raise AdvantageError(f"{who} returned advantages that are not an array of numbers: {error}.") from error
    expected = (counts[result.level],)
    if values.shape != expected:
        raise AdvantageError(
            f"{who} returned {result.level} advantages of shape {values.shape}; this batch needs {expected}.",
            "Return one number per trajectory, step or token, in the order of the inputs.",
        )
    usable = np.abs(values) <= np.finfo(np.float32).max
    if not usable.all():
        raise AdvantageError(
            f"{who} returned {int((~usable).sum())} advantages that are NaN or infinite in float32.",
            "Guard divisions against groups of one and groups of equal rewards.",
        )
    match result.level:
        case "trajectory":
            spread = np.repeat(values, np.diff(inputs.token_offsets))
        case "step":
            spread = _spread_steps(inputs, values)
        case "token":
            spread = values
    return np.where(inputs.loss_mask, spread, 0.0).astype(np.float32)


def step_of_sampled(inputs: AdvantageInput) -> NDArray[np.int64]:
    """(n_sampled,) which step sampled each token, in the order of the tokens where `loss_mask` is True.

    Steps are numbered as in `step_rewards`. A trajectory's steps may have been put into another order than their
    tokens have, so they are found by their spans.
    """
    spans = [
        (index, step.span.response_start, step.span.end)
        for index, trajectory in enumerate(trajectory for group in inputs.groups for trajectory in group.trajectories)
        for step in trajectory.steps
    ]
    trajectory, start, end = np.array(spans, np.int64).reshape(-1, 3).T
    order = np.lexsort((start, trajectory))
    return np.repeat(order, (end - start)[order])


def _spread_steps(inputs: AdvantageInput, values: NDArray[np.float64]) -> NDArray[np.float64]:
    spread = np.zeros(len(inputs.loss_mask))
    spread[inputs.loss_mask] = values[step_of_sampled(inputs)]
    return spread


def _index_within_role(batch: TokenBatch, role_index: int) -> NDArray[np.int64]:
    """(n_traj of the batch,) index of each trajectory among those of the role; meaningless for other roles."""
    belongs = np.repeat(
        [group.group_role == batch.roles[role_index] for group in batch.groups],
        [len(group.trajectories) for group in batch.groups],
    )
    return np.cumsum(belongs) - 1


def _offsets(lengths: list[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int64)
