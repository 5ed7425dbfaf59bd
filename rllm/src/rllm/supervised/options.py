"""Options of the stage `examples`, in a separate module so that listing plugins does not import numpy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rllm_core.contracts.plugin import Params

SUPERVISE = "rllm/supervise"
"""Qualified name of the stage that every fine-tuning run has."""

LongRows = Literal["cut", "drop", "error"]
"""Outcome of rows with too many tokens."""


class ExamplesParams(Params):
    """Options of the stages ``examples`` and ``preferences``."""

    train_on: Literal["assistant", "last", "all"] = Field(
        "assistant",
        description="Trained tokens of a row. `assistant`: all assistant messages, or the completion. `last`: the last "
        "assistant message. `all`: every token.",
    )
    max_length: int | None = Field(
        None,
        ge=2,
        description="Maximum number of tokens of a row, with its prompt. null: the longest context of the run, which "
        "is always a limit.",
    )
    long_rows: LongRows = Field(
        "cut",
        description="What happens to longer rows. `cut`: their later tokens are cut off. `drop`: they are dropped. "
        "`error`: the run stops.",
    )
