"""Whether vLLM is there, seen without importing it."""

from __future__ import annotations

from importlib.util import find_spec

from rllm_core.errors import PluginError


def check_installed() -> None:
    """Raise PluginError when vLLM is not installed."""
    if find_spec("vllm") is None:
        raise PluginError(
            "engine 'vllm' needs the package vllm, which is not installed.",
            "pip install 'rllm-vllm[gpu]', or on a machine without a GPU: pip install 'rllm-vllm[cpu]'",
        )
