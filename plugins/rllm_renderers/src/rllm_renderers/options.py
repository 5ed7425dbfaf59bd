"""Options of the renderer `renderers`. Apart from what renders, so that listing plugins stays cheap."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rllm_core.contracts.plugin import Params


class RenderersParams(Params):
    """Options of ``renderers``."""

    config: str | None = Field(
        None,
        min_length=1,
        description="Family of the model as the library names it, such as qwen3; null finds it by the model's name or "
        "by its chat template.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Fields of that family's configuration, such as {thinking_retention: all}, which keeps thoughts.",
    )
