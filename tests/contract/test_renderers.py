"""Every renderer of this repository keeps the contract of renderers."""

from __future__ import annotations

from rllm_plugin_kit import RendererContract

globals().update(RendererContract.for_each("rllm-core"))
