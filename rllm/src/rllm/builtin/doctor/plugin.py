"""Plugin spec of the observer `doctor`."""

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
        name="doctor",
        summary="Applies the rules of `rllm doctor` during the run. It warns or stops the run.",
        load_params=load_from("rllm.builtin.doctor.observer", "DoctorParams"),
        load=load_from("rllm.builtin.doctor.observer", "Doctor"),
    )
