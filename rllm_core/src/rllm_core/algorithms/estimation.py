"""The computation of per-token advantages: each role's columns, its estimator, checks and broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms.columns import build_estimator_input, mark_tokens, step_of_sampled
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.estimator import (
    AdvantageEstimator,
    AdvantageInput,
    Advantages,
    EstimatorPlugin,
    Level,
    StatefulEstimator,
)
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import AdvantageError, failures_as

if TYPE_CHECKING:
    from rllm_core.schema.algorithm_sections import AlgorithmSection

EstimatorChoice = PluginChoice[EstimatorPlugin[Any]]
PRECOMPUTED = "precomputed"
"""Used instead of an estimator's name for advantages that came with the trajectories."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PrecomputedAdvantages:
    """Advantages that came with the trajectories of some groups."""

    groups: NDArray[np.bool_]
    """(n_group,) True for these groups."""
    advantages: NDArray[np.float32]
    """(n_token,) advantages of their tokens, 0 for all other tokens."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimates:
    """The results of the estimators for the tokens of a batch."""

    advantages: NDArray[np.float32]
    """(n_token,) advantages, 0 for tokens that the model did not sample."""
    returns: NDArray[np.float32] | None
    """(n_token,) targets for a critic, NaN if the role's estimator returned none. None if no estimator returned any."""
    baselines: NDArray[np.float64]
    """(n_traj,) baselines that rewards were compared with, NaN if the estimator does not report them."""
    estimators: tuple[str, ...]
    """(n_group,) names of the estimators. ``precomputed`` for groups that already had advantages."""


class EstimatorObjects:
    """The objects of a run's estimators that keep state. Each is made when a step first needs it."""

    def __init__(self) -> None:
        self._objects: dict[str, StatefulEstimator] = {}
        self._saved: dict[str, Any] = {}

    def function(self, estimator: EstimatorChoice, roles: Sequence[str]) -> AdvantageEstimator | StatefulEstimator:
        """Return the function, or the object with state, to call for these roles."""
        implementation = estimator.registered.load()
        if not estimator.plugin.keeps_state:
            function: AdvantageEstimator = implementation
            return function
        key = " ".join([estimator.qualified_name, *(() if estimator.plugin.scope == "batch" else roles)])
        if key not in self._objects:
            self._objects[key] = implementation()
            if key in self._saved:
                self._objects[key].load_state_dict(self._saved[key])
        return self._objects[key]

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all objects by estimator and role. States that the run has not used yet are kept."""
        return self._saved | {key: each.state_dict() for key, each in self._objects.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the states. A state whose estimator was not saved begins empty."""
        self._objects, self._saved = {}, state


def estimate(
    batch: TokenBatch,
    estimator_of: Callable[[str], EstimatorChoice],
    *,
    objects: EstimatorObjects | None = None,
    precomputed: PrecomputedAdvantages | None = None,
    algorithm_config: AlgorithmSection | None = None,
) -> Estimates:
    """Return per-token advantages of a batch whose groups have finite rewards.

    Each role's estimator is called once, with all groups of the role. An estimator of scope ``batch`` is called once
    with the groups of all roles that chose it. Groups with precomputed advantages are skipped. `objects` has the
    estimators' states, and None means that all are empty.

    Raises:
        AdvantageError: an estimator failed, or returned the wrong shape, the wrong level or a value that is not finite.
    """
    objects = objects or EstimatorObjects()
    advantages = np.zeros(len(batch.tokens), np.float32)
    returns = np.full(len(batch.tokens), np.nan, np.float32)
    sizes = [len(group.trajectories) for group in batch.groups]
    baselines = np.full(sum(sizes), np.nan)
    estimators = np.full(len(batch.groups), PRECOMPUTED, object)
    left = np.ones(len(batch.groups), np.bool_)
    if precomputed is not None:
        advantages += precomputed.advantages
        left &= ~precomputed.groups
    group_roles = np.array([batch.roles.index(group.group_role) for group in batch.groups])
    for roles, estimator in _calls(batch.roles, estimator_of):
        chosen = left & np.isin(group_roles, [batch.roles.index(role) for role in roles])
        if not chosen.any():
            continue
        who = f"estimator {estimator.plugin.name!r} for role {' and '.join(map(repr, roles))}"
        inputs = build_estimator_input(batch, chosen, algorithm_config)
        with failures_as(AdvantageError, who, "Its inputs are read-only; add --debug to see where it failed."):
            result = objects.function(estimator, roles)(inputs, estimator.params)
        tokens = mark_tokens(batch, chosen)
        advantages[tokens] = to_tokens(inputs, result, who, estimator.plugin.level)
        estimators[chosen] = estimator.plugin.name
        if result.baselines is not None:
            baselines[np.repeat(chosen, sizes)] = _checked_baselines(inputs, result.baselines, who)
        if result.returns is not None:
            returns[tokens] = _checked_returns(inputs, result.returns, who)
    return Estimates(
        advantages=advantages,
        returns=None if np.isnan(returns).all() else returns,
        baselines=baselines,
        estimators=tuple(estimators.tolist()),
    )


def divide_by_steps(batch: TokenBatch, advantages: NDArray[np.float32]) -> NDArray[np.float32]:
    """Divide every token's advantage by the number of steps of its trajectory.

    The total weight of a trajectory then does not grow with its number of steps (`normalize_by_steps`).
    """
    steps = np.array([len(trajectory.steps) for group in batch.groups for trajectory in group.trajectories], np.float32)
    # Trajectories without steps have no row, so none of these divisors is 0.
    return (advantages / np.repeat(steps[batch.trajectory], batch.row_lengths)).astype(np.float32)


def to_tokens(inputs: AdvantageInput, result: Advantages, who: str, declared: Level) -> NDArray[np.float32]:
    """Check an estimator's result and repeat each value for all tokens that it applies to."""
    counts = {
        "trajectory": len(inputs.rewards),
        "step": len(inputs.step_rewards),
        "token": len(inputs.loss_mask),
    }
    if not isinstance(result, Advantages) or result.level not in counts:
        raise AdvantageError(
            "bad-estimator-result",
            f"{who} returned {result!r:.200}.",
            "Return Advantages(values=…, level=…); levels are " + ", ".join(counts) + ".",
        )
    if result.level != declared:
        raise AdvantageError(
            "bad-estimator-result",
            f"{who} returned {result.level} advantages; its plugin spec has level={declared!r}.",
            "Use the same level in Advantages(values=…, level=…), whose default is trajectory, and in "
            "EstimatorPlugin(level=…).",
        )
    try:
        values = np.asarray(result.values, np.float64)
    except (TypeError, ValueError) as error:
        raise AdvantageError(
            "bad-estimator-result",
            f"{who} returned advantages that are not an array of numbers: {error}.",
            "Return an array with one number per trajectory, step or token.",
        ) from error
    expected = (counts[result.level],)
    if values.shape != expected:
        raise AdvantageError(
            "bad-estimator-result",
            f"{who} returned {result.level} advantages of shape {values.shape}; this batch needs {expected}.",
            "Return one number per trajectory, step or token, in the order of the inputs.",
        )
    _check_usable(values, f"{who} returned", "advantages")
    match result.level:
        case "trajectory":
            spread = np.repeat(values.astype(np.float32), np.diff(inputs.token_offsets))
        case "step":
            spread = np.zeros(len(inputs.loss_mask), np.float32)
            spread[inputs.loss_mask] = values[step_of_sampled(inputs)]
        case "token":
            spread = values.astype(np.float32)
    spread[~inputs.loss_mask] = 0.0
    return spread


def _calls(
    roles: tuple[str, ...], estimator_of: Callable[[str], EstimatorChoice]
) -> list[tuple[list[str], EstimatorChoice]]:
    """Return the roles that are estimated together, with their estimator."""
    calls: list[tuple[list[str], EstimatorChoice]] = []
    for role in roles:
        estimator = estimator_of(role)
        together = [names for names, other in calls if _same(other, estimator)]
        if together and estimator.plugin.scope == "batch":
            together[0].append(role)
        else:
            calls.append(([role], estimator))
    return calls


def _same(one: EstimatorChoice, other: EstimatorChoice) -> bool:
    return one.registered is other.registered and one.params == other.params


def _checked_baselines(inputs: AdvantageInput, baselines: NDArray[np.float64], who: str) -> NDArray[np.float64]:
    values = np.asarray(baselines, np.float64)
    if values.shape != inputs.rewards.shape:
        raise AdvantageError(
            "bad-estimator-result",
            f"{who} gave baselines of shape {values.shape}; this batch needs {inputs.rewards.shape}.",
            "Return one baseline per trajectory, the value that its reward was compared with.",
        )
    return values


def _checked_returns(inputs: AdvantageInput, returns: NDArray[np.float64], who: str) -> NDArray[np.float32]:
    values = np.asarray(returns, np.float64)
    if values.shape != inputs.loss_mask.shape:
        raise AdvantageError(
            "bad-estimator-result",
            f"{who} gave returns of shape {values.shape}; this batch needs {inputs.loss_mask.shape}.",
            "Return one target for the critic per token.",
        )
    _check_usable(values, f"{who} gave", "returns")
    return values.astype(np.float32)


def _check_usable(values: NDArray[np.float64], who: str, what: str) -> None:
    """Check that values fit float32, because backends compute in float32. None may become infinite, and not all may
    become 0."""
    limit, smallest = np.finfo(np.float32).max, np.finfo(np.float32).tiny
    # If any value is NaN, min and max are NaN, and both comparisons are False.
    if not (values.min(initial=0.0) >= -limit and values.max(initial=0.0) <= limit):
        unusable = int((~(np.abs(values) <= limit)).sum())
        hint = "Guard divisions against groups of one and groups of equal rewards."
        if np.isfinite(values).all():
            hint = f"float32 stores numbers up to {limit:.2g}: scale the rewards down, or use an estimator that does."
        raise AdvantageError(
            "advantages-not-finite", f"{who} {unusable} {what} that are NaN or infinite in float32.", hint
        )
    largest = np.abs(values).max(initial=0.0)
    if 0.0 < largest < smallest:
        raise AdvantageError(
            "advantages-too-small",
            f"{who} {what} of at most {largest:.2g}, which float32 cannot tell from 0.",
            f"float32 stores numbers from {smallest:.2g}: scale the rewards up, or use an estimator that does.",
        )
