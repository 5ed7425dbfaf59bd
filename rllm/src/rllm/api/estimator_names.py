"""RLLM_ADV_ESTIMATOR_REGISTRY: the estimators of this process, from name to function in rLLM's classic signature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rllm.api.classic import ClassicEstimator
from rllm.api.registration import get_rllm_adv_estimator
from rllm_core.errors import PluginError
from rllm_core.plugins.registry import Registry


class EstimatorNames(Mapping[str, ClassicEstimator]):
    """Live view of the installed and registered estimators. `register_rllm_adv_estimator` adds to it.

    The names are values for ``rllm.algorithm.adv_estimator``. A name that two packages offer is qualified. Estimators
    with advantages per step or per token are missing, because the classic signature has one per trajectory.
    """

    def __getitem__(self, name: str) -> ClassicEstimator:
        """Return the estimator, as `get_rllm_adv_estimator`, but raise KeyError instead of PluginError."""
        try:
            return get_rllm_adv_estimator(name)
        except PluginError as error:
            raise KeyError(f"{error.message} {error.hint}") from error

    def __iter__(self) -> Iterator[str]:
        found = [entry for entry in Registry.load().all("estimator") if entry.plugin.level == "trajectory"]
        names = [entry.name for entry in found]
        return iter([entry.name if names.count(entry.name) == 1 else entry.qualified_name for entry in found])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return f"<estimators {', '.join(self)}>"


RLLM_ADV_ESTIMATOR_REGISTRY = EstimatorNames()
