"""Options of the dataset `stored`, apart from what reads: listing plugins stays cheap."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rllm_core.contracts.plugin import Params


class StoredParams(Params):
    """Options of the dataset ``stored``."""

    path: str = Field(
        min_length=1,
        description="Folder that `rllm gateway episodes` wrote, run with `rllm.record=tokens`, or file of episodes.",
    )
    group_by: Literal["step", "task"] = Field(
        "step",
        description="Which rollouts at a task are compared: `step`: those of one step, which one policy has sampled; "
        "`task`: those of all steps.",
    )
