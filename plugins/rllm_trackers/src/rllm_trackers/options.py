"""Options of these trackers. Apart from the trackers, so that listing plugins imports no client library."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from rllm_core.contracts.plugin import Params
from rllm_core.tracking import checked_path


class TensorboardParams(Params):
    folder: str | None = Field(
        None, min_length=1, description="Folder of the event files, relative to the run folder; null means tensorboard."
    )

    @field_validator("folder")
    @classmethod
    def _not_one_of_the_run(cls, folder: str | None) -> str | None:
        return checked_path(folder, "tensorboard")


class WeightsAndBiasesParams(Params):
    mode: Literal["online", "offline", "disabled"] | None = Field(
        None, description="Where runs go; null means what the variable WANDB_MODE says, else online."
    )
    entity: str | None = Field(None, description="User or team the run belongs to; null means the account's default.")
    tags: tuple[str, ...] = Field((), description="Tags of the run.")
    group: str | None = Field(None, description="Group the run is shown in.")
