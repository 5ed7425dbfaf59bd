"""The engine of the local backend keeps the contract of engines, with its own model."""

from __future__ import annotations

from local_backend import HostedCopy

from rllm_core.contracts import EnginePlugin, NoParams
from rllm_plugin_kit import EngineContract


class TestLocal(EngineContract):
    def record(self) -> EnginePlugin[NoParams]:
        return EnginePlugin(name="local", summary="That of rllm-local.", load=lambda: HostedCopy, stop_texts=True)
