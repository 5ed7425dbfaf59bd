"""Any estimator that gives one advantage per trajectory, as a function in rLLM's classic signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rllm_core.algorithms.classic import per_group
from rllm_core.algorithms.classic_call import NORM
from rllm_core.algorithms.columns import columns_of
from rllm_core.contracts.estimator import ALWAYS_FILLED, AdvantageEstimator, AdvantageInput, EstimatorPlugin
from rllm_core.data.batch import build_batch
from rllm_core.data.types import TrajectoryGroup
from rllm_core.errors import AdvantageError, PluginError
from rllm_core.schema.algorithm_sections import AlgorithmSection

Lists = list[NDArray[np.float64]]
ParamsOf = Callable[[AlgorithmSection | None, Mapping[str, Any]], Any]
"""From the run's ``rllm.algorithm`` and options given by keyword to the estimator's validated options."""


class AsClassic:
    """Callable as ``f(rewards, algorithm_config, traj_groups=…, **options) -> (advantages, returns)``.

    Options of the estimator are taken from `options`, else from the keys of `algorithm_config` that it shares in a run,
    else they have their defaults.
    """

    def __init__(self, plugin: EstimatorPlugin[Any], estimator: AdvantageEstimator, params_of: ParamsOf) -> None:
        """Raises PluginError when the estimator gives advantages per step or per token."""
        if plugin.level != "trajectory":
            raise PluginError(
                "bad-estimator-signature",
                f"Estimator {plugin.name!r} gives one advantage per {plugin.level}; in the classic signature there is "
                "one per trajectory.",
                f"get_rllm_estimator({plugin.name!r}) gives it in its own signature, (inputs, params).",
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
        """Estimate.

        Args:
            rewards: an array per group, (n_traj,) with one reward per trajectory.
            traj_groups: the groups, where the estimator looks at more than rewards.
            norm_adv_by_std_in_grpo: in the kwargs of every classic function, so an estimator without this option
                leaves it alone; None: as `algorithm_config` says.

        Returns:
            Advantages and returns, each a list of arrays of the shapes of `rewards`. Estimators of this level have no
            returns of their own: they equal the advantages.

        Raises:
            AdvantageError: `rewards` are no list of flat arrays or do not fit `traj_groups`, or the estimator needs
                something that they do not tell.
            ConfigError: an option is wrong.
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
        return replace(columns_of(build_batch(groups), np.ones(len(groups), np.bool_), config), rewards=together)

    def _error(self, problem: str, hint: str = "") -> AdvantageError:
        return AdvantageError("bad-estimator-signature", f"estimator {self._plugin.name!r} {problem}", hint)


@dataclass(frozen=True)
class _RewardsAlone:
    """An `AdvantageInput` of which only rewards and groups are known: whoever looks at more is told what to pass."""

    name: str
    rewards: NDArray[np.float64]
    group_offsets: NDArray[np.int64]
    algorithm_config: AlgorithmSection | None

    def __getattr__(self, column: str) -> Any:
        if column not in AdvantageInput.__dataclass_fields__:
            raise AttributeError(column)
        raise AdvantageError(
            "missing-estimator-input",
            f"estimator {self.name!r} looks at {column}, and is given rewards alone.",
            "Pass the groups as well: traj_groups=…",
        )
