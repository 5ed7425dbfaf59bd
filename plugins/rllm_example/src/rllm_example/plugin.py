"""What rllm-example offers."""

from __future__ import annotations

from collections.abc import Iterable

from rllm_core.contracts import AdvantageEstimator, EstimatorPlugin
from rllm_core.plugins import hookimpl

from rllm_example.options import ExampleEstimatorParams

requires_api = 1


def load() -> AdvantageEstimator:
    # Imported in here, because `rllm --help` and `rllm plugins list` must not wait for numpy.
    from rllm_example.estimator import example_estimator

    return example_estimator


@hookimpl
def rllm_estimators() -> Iterable[EstimatorPlugin[ExampleEstimatorParams]]:
    yield EstimatorPlugin(
        name="example",
        summary="Reward minus the group's median, times a constant.",
        params=ExampleEstimatorParams,
        load=load,
        level="trajectory",
        scope="group",
        default_loss="ppo",
    )
