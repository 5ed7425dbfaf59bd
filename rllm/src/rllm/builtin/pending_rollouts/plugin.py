"""Plugin spec of the observer `pending_rollouts`, which joins runs that generate rollouts."""

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
        name="pending_rollouts",
        summary="Warns about rollouts that wait too long, for `rllm runs status`. Added to all runs that generate "
        "rollouts.",
        load_params=load_from("rllm.builtin.pending_rollouts.observer", "PendingRolloutsParams"),
        load=load_from("rllm.builtin.pending_rollouts.observer", "PendingRolloutsObserver"),
        joins=lambda config: config.rllm.pipeline.has_rollouts,
    )
