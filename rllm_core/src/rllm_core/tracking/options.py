"""Options of the core's own trackers. Apart from the trackers so that listing plugins imports no client library."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rllm_core.contracts.plugin import Params


class JsonLinesParams(Params):
    path: str | None = Field(
        None, min_length=1, description="File, relative to the run folder; null means tracker.jsonl."
    )


class TensorboardParams(Params):
    folder: str | None = Field(
        None, min_length=1, description="Folder of the event files, relative to the run folder; null means tensorboard."
    )


class WeightsAndBiasesParams(Params):
    mode: Literal["online", "offline", "disabled"] | None = Field(
        None, description="Where runs go; null means what the variable WANDB_MODE says, else online."
    )
    entity: str | None = Field(None, description="User or team the run belongs to; null means the account's default.")
    tags: tuple[str, ...] = Field((), description="Tags of the run.")
    group: str | None = Field(None, description="Group the run is shown in.")
