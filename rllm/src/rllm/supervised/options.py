"""Options of the stage `examples`, in a separate module so that listing plugins does not import numpy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rllm_core.contracts.plugin import Params

SUPERVISE = "rllm/supervise"
"""Qualified name of the stage that every fine-tuning run has."""


class ExamplesParams(Params):
    """Options of the stage ``examples``."""

    train_on: Literal["assistant", "last", "all"] = Field(
        "assistant",
        description="Trained tokens of a row. `assistant`: all assistant messages, or the completion. `last`: the last "
        "assistant message. `all`: every token.",
    )
    max_length: int | None = Field(
        None, ge=2, description="Maximum number of tokens of a row. Later tokens are cut off. null: no limit."
    )
