"""How the contract of estimators calls one: made-up groups in, checked advantages out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms.columns import GREEDY_REWARD, REWARD_COMPONENTS, build_estimator_input
from rllm_core.algorithms.estimation import to_tokens
from rllm_core.contracts.estimator import AdvantageInput, Advantages, EstimatorPlugin
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.errors import RllmError
from rllm_plugin_kit.plugin import PluginContract
from rllm_plugin_kit.samples import Member, fill, make_groups


class EstimatorCalls(PluginContract[EstimatorPlugin[Any]]):
    """Base of `EstimatorContract`."""

    kind = "estimator"

    def prepare(self, trajectory: Trajectory) -> None:
        """Put into a trajectory what the estimator reads of it. Override it where two reward components will not do."""
        reward = trajectory.reward or 0.0
        trajectory.info[REWARD_COMPONENTS] = {"correct": 0.75 * reward, "format": 0.25 * reward}

    def groups(self, members: Sequence[Sequence[Member]]) -> list[TrajectoryGroup]:
        """Groups of such trajectories, prepared."""
        groups = make_groups(members)
        for number, group in enumerate(groups):
            for trajectory in group.trajectories:
                self.prepare(trajectory)
                if "greedy_rewards" in self.plugin.needs:
                    trajectory.info[GREEDY_REWARD] = group.trajectories[0].reward if number % 2 else 0.5
        return groups

    def inputs(self, groups: Sequence[TrajectoryGroup]) -> AdvantageInput:
        """Return the columns of these groups, with the columns in the plugin's `needs`."""
        # `build_estimator_input` selects groups of a batch, and a batch needs at least one group.
        batch = fill(build_batch(groups or self.groups([[Member(0.0)]])), self.plugin.needs)
        return build_estimator_input(batch, np.full(len(batch.groups), bool(groups)))

    def called(self, params: Any, groups: Sequence[TrajectoryGroup], case: str) -> Advantages:
        """Call the estimator for these groups and return its result."""
        return self.call(params, self.inputs(groups), case)

    def call(self, params: Any, inputs: AdvantageInput, case: str) -> Advantages:
        """Call the estimator and return its result if it is valid. `case` describes the input in messages."""
        try:
            result: Advantages = self.loaded()(inputs, params)
        except Exception as error:
            writes = "read-only" in str(error)
            raise self.failure(
                f"failed on {case}: {type(error).__name__}: {error}",
                "It writes into its inputs: work on a copy, such as `inputs.rewards.copy()`."
                if writes
                else "Such batches occur in training. Return an advantage for each trajectory.",
            ) from error
        try:
            to_tokens(inputs, result, f"{self.display_name}, given {case},", self.plugin.level)
        except RllmError as error:
            raise AssertionError(str(error)) from error
        self._check_returns(inputs, result)
        return result

    def _check_returns(self, inputs: AdvantageInput, result: Advantages) -> None:
        if result.returns is None:
            return
        returns = np.asarray(result.returns, np.float64)
        if returns.shape != inputs.loss_mask.shape or not np.isfinite(returns).all():
            raise self.failure(
                f"gives returns of shape {returns.shape} for {inputs.loss_mask.shape} tokens, or some that are not "
                "finite",
                "Returns are a critic's targets: one finite number for every token, 0 where nothing was sampled.",
            )

    def tokens(self, params: Any, groups: Sequence[TrajectoryGroup], case: str) -> dict[str, NDArray[np.float32]]:
        """The advantages of the sampled tokens of each trajectory, by its uid."""
        inputs = self.inputs(groups)
        tokens = to_tokens(inputs, self.call(params, inputs, case), self.display_name, self.plugin.level)
        uids = [trajectory.uid for group in groups for trajectory in group.trajectories]
        parts = [slice(*bounds) for bounds in zip(inputs.token_offsets, inputs.token_offsets[1:], strict=False)]
        return {uid: tokens[part][inputs.loss_mask[part]] for uid, part in zip(uids, parts, strict=True)}


def distance(one: dict[str, NDArray[np.float32]], other: dict[str, NDArray[np.float32]]) -> float:
    """The largest difference of two results for the same trajectories, relative to the largest advantage."""
    pairs = [(one[uid].astype(np.float64), other[uid]) for uid in one if one[uid].size]
    largest = max((np.abs(values).max() for pair in pairs for values in pair), default=0.0)
    return float(max((np.abs(a - b).max() for a, b in pairs), default=0.0) / (largest or 1.0))
