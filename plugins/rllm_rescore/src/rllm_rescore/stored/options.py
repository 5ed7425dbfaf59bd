"""Options of the dataset `stored`, apart from what reads: listing plugins stays cheap."""

from __future__ import annotations

from pydantic import Field

from rllm_core.contracts.plugin import Params


class StoredParams(Params):
    """Options of the dataset ``stored``."""

    path: str = Field(
        min_length=1,
        description="Folder that `rllm gateway export` wrote, run with `rllm.record=tokens`, or file of episodes.",
    )
