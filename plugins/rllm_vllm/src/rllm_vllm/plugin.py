"""Plugin spec of rllm-vllm: the rollout engine `vllm`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rllm_core.contracts.engine import EnginePlugin
from rllm_core.plugins import hookimpl
from rllm_vllm.options import VllmOptions

if TYPE_CHECKING:
    from rllm_core.contracts.engine import HostedEngine

requires_api = 1


def _load() -> Callable[[Any], HostedEngine]:
    from rllm_vllm.installed import check_installed

    check_installed()
    from rllm_vllm.engine import VllmEngine

    return VllmEngine


@hookimpl
def rllm_engines() -> Iterable[EnginePlugin[VllmOptions]]:
    yield EnginePlugin(
        name="vllm",
        summary="vLLM in separate processes, on one or several GPUs, or on a CPU.",
        params=VllmOptions,
        load=_load,
    )
