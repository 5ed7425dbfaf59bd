"""Plugin spec of the observer `budget`, which joins runs with a budget or a price."""

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
        name="budget",
        summary="Stops a run at its budget of hours, tokens or cost. Added to runs with a budget or a price.",
        load_params=load_from("rllm.builtin.budgets.observer", "BudgetParams"),
        load=load_from("rllm.builtin.budgets.observer", "Budget"),
        joins=lambda config: config.rllm.trainer.has_budget,
    )
