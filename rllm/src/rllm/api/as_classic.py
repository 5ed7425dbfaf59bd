"""Wraps any estimator with one advantage per trajectory as a function in rLLM's classic signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rllm.api.classic import per_group
from rllm.api.classic_call import NORM
from rllm_core.algorithms.columns import build_estimator_input
from rllm_core.contracts.estimator import ALWAYS_FILLED, AdvantageEstimator, AdvantageInput, EstimatorPlugin
from rllm_core.data.batch import build_batch
from rllm_core.data.types import TrajectoryGroup
from rllm_core.errors import AdvantageError, PluginError
from rllm_core.schema.algorithm_sections import AlgorithmSection

Lists = list[NDArray[np.float64]]
ParamsOf = Callable[[AlgorithmSection | None, Mapping[str, Any]], Any]
"""Converts the run's ``rllm.algorithm`` and keyword options to the estimator's validated options."""


class AsClassic:
    """A callable ``f(rewards, algorithm_config, traj_groups=…, **options) -> (advantages, returns)``.

    The estimator's options come from `options`, then from the keys of `algorithm_config` that a run would share with
    it, then from the defaults.
    """

    def __init__(self, plugin: EstimatorPlugin[Any], estimator: AdvantageEstimator, params_of: ParamsOf) -> None:
        """Wrap an estimator.

        Raises:
            PluginError: the estimator returns advantages per step or per token.
        """
        if plugin.level != "trajectory":
            raise PluginError(
                "bad-estimator-signature",
                f"Estimator {plugin.name!r} returns one advantage per {plugin.level}; the classic signature has "
                "one per trajectory.",
                f"Set rllm.algorithm.adv_estimator={plugin.name}, or name an estimator of trajectories.",
            )
        self._plugin = plugin
        self._estimator = estimator
        self._params_of = params_of

    def __repr__(self) -> str:
        return f"<estimator {self._plugin.name!r} in the classic signature>"

    def __call__(
        self,
        rewards: Sequence[ArrayLike],
        algorithm_config: AlgorithmSection | None = None,
        *,
        traj_groups: Sequence[TrajectoryGroup] | None = None,
        norm_adv_by_std_in_grpo: bool | None = None,
        **options: Any,
    ) -> tuple[Lists, Lists]:
        """Estimate advantages.

        Args:
            rewards: an array per group, (n_traj,) with one reward per trajectory.
            traj_groups: the groups, if the estimator uses more than rewards.
            norm_adv_by_std_in_grpo: part of the kwargs of every classic function. An estimator without this option
                ignores it. If None, the value in `algorithm_config` applies.

        Returns:
            Advantages and returns, each a list of arrays with the shapes of `rewards`. Estimators of this level have no
            separate returns, so the returns equal the advantages.

        Raises:
            AdvantageError: `rewards` is not a list of flat arrays or does not fit `traj_groups`, or the estimator needs
                data that these arguments do not contain.
            ConfigError: an option is invalid.
        """
        arrays = [np.array(values, np.float64) for values in rewards]
        for array in arrays:
            if array.ndim != 1:
                raise self._error(f"is given rewards of shape {array.shape}.", "Give one flat array per group.")
        inputs = self._inputs(arrays, algorithm_config, traj_groups)
        for need in sorted(self._plugin.needs - ALWAYS_FILLED):
            if getattr(inputs, need) is None:
                raise self._error(f"needs {need}, which only a run can fill.", "Choose it by name in a run.")
        if norm_adv_by_std_in_grpo is not None and NORM in self._plugin.params.model_fields:
            options[NORM] = norm_adv_by_std_in_grpo
        result = self._estimator(inputs, self._params_of(algorithm_config, options))
        values = np.asarray(result.values, np.float64)
        if values.shape != inputs.rewards.shape:
            raise self._error(f"returned advantages of shape {values.shape} for {len(inputs.rewards)} trajectories.")
        return per_group(values.copy(), inputs.group_offsets), per_group(values.copy(), inputs.group_offsets)

    def _inputs(
        self, arrays: Lists, config: AlgorithmSection | None, groups: Sequence[TrajectoryGroup] | None
    ) -> AdvantageInput:
        sizes = [len(array) for array in arrays]
        together = np.concatenate([np.empty(0), *arrays])
        together.flags.writeable = False
        if groups is None:
            offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
            return cast(AdvantageInput, _RewardsAlone(self._plugin.name, together, offsets, config))
        theirs = [len(group.trajectories) for group in groups]
        if sizes != theirs:
            raise self._error(
                f"is given {len(sizes)} arrays of {sizes} rewards for {len(theirs)} groups of {theirs} trajectories.",
                "Give one reward per trajectory.",
            )
        return replace(
            build_estimator_input(build_batch(groups), np.ones(len(groups), np.bool_), config), rewards=together
        )

    def _error(self, problem: str, hint: str = "") -> AdvantageError:
        return AdvantageError("bad-estimator-signature", f"estimator {self._plugin.name!r} {problem}", hint)


@dataclass(frozen=True)
class _RewardsAlone:
    """An `AdvantageInput` with only rewards and groups. Access to other columns raises an error that names the argument
    to pass."""

    name: str
    rewards: NDArray[np.float64]
    group_offsets: NDArray[np.int64]
    algorithm_config: AlgorithmSection | None

    def __getattr__(self, column: str) -> Any:
        if column not in AdvantageInput.__dataclass_fields__:
            raise AttributeError(column)
        raise AdvantageError(
            "missing-estimator-input",
            f"estimator {self.name!r} reads {column}, and was called with rewards only.",
            "Pass the groups too: traj_groups=…",
        )
