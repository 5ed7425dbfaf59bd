"""Plugin spec of the observer `weight_check`, which joins runs that generate rollouts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts.observer import ObserverPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1


@hookimpl
def rllm_observers() -> Iterable[ObserverPlugin[Any]]:
    yield ObserverPlugin(
        name="weight_check",
        summary="Checks that the sampler has the trained weights. Added to all runs that generate rollouts.",
        load_params=load_from("rllm.builtin.weight_check.observer", "WeightCheckParams"),
        load=load_from("rllm.builtin.weight_check.observer", "WeightCheck"),
        joins=lambda config: config.rllm.pipeline.has_rollouts,
    )
