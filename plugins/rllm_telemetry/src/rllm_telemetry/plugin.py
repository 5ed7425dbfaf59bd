"""Plugin spec of the observer `telemetry`."""

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
        name="telemetry",
        summary="Sends spans and metrics to an OpenTelemetry collector. The variables OTEL_* are its settings.",
        load=load_from("rllm_telemetry.observer", "TelemetryObserver"),
    )
