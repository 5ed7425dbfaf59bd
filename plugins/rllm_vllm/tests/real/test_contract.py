"""vLLM is held to the contract of engines."""

from __future__ import annotations

from rllm_plugin_kit import EngineContract


class TestVllm(EngineContract):
    name = "rllm-vllm/vllm"
