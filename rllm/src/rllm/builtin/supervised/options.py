"""Options of the stage `examples`, in a separate module so that listing plugins does not import numpy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rllm.rows.options import RowParams


class ExamplesParams(RowParams):
    """Options of the stages ``examples`` and ``preferences``."""

    train_on: Literal["assistant", "last", "all"] = Field(
        "assistant",
        description="Trained tokens of a row. `assistant`: all assistant messages, or the completion. `last`: the last "
        "assistant message. `all`: every token.",
    )
