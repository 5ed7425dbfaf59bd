"""Options of the renderer `renderers`. This module does not import the library, so that plugins are listed quickly."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rllm_core.rollout.options import RendererParams


class RenderersParams(RendererParams):
    """Options of ``renderers``."""

    config: str | None = Field(None, min_length=1)
    """The library's name for the model family, such as qwen3. null: rllm finds the family from the model's name or its
    chat template."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Fields of the family's configuration in the library. For example, {thinking_retention: all} keeps reasoning in
    later prompts. Requires `config`."""
