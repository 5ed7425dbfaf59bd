"""Plugins of rllm-opo-port: the estimator `opo_port`."""

from __future__ import annotations

from collections.abc import Iterable

from rllm_core.contracts import AdvantageEstimator, EstimatorPlugin, NoParams
from rllm_core.plugins import hookimpl

requires_api = 1


def load() -> AdvantageEstimator:
    # The import is here because `rllm --help` must not wait for numpy.
    from rllm_opo_port.opo import opo

    return opo


@hookimpl
def rllm_estimators() -> Iterable[EstimatorPlugin[NoParams]]:
    yield EstimatorPlugin(name="opo_port", summary="OPO, ported from verl.", load=load)
