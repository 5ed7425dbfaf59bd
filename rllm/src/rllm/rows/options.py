"""Options for long rows, in a separate module so that listing plugins does not import numpy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rllm_core.contracts.plugin import Params

LongRows = Literal["cut", "drop", "error"]
"""Outcome of rows with too many tokens."""


class RowParams(Params):
    """Options of every stage that brings rows of data instead of rollouts."""

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
