"""Options of these trackers. Apart from the trackers, so that listing plugins imports no client library."""

from __future__ import annotations

import os.path
from pathlib import PurePath
from typing import Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from rllm_core.contracts.plugin import Params


class EpisodeTableParams(Params):
    """Of a tracker that shows a table of a few trajectories."""

    episodes: int = Field(4, ge=0, description="Trajectories in the table of a step; 0: no table.")
    episodes_every: int = Field(10, ge=1, description="Steps from one table to the next.")


class TensorboardParams(EpisodeTableParams):
    directory: str | None = Field(
        None, min_length=1, description="Folder of the event files, relative to the run folder; null means tensorboard."
    )

    @field_validator("directory")
    @classmethod
    def _check_not_written_by_the_run(cls, directory: str | None) -> str | None:
        if directory is None:
            return None
        from rllm.runs.run_directory import LOCK, WRITTEN  # listing plugins must not wait for this import

        first, *_ = parts = PurePath(os.path.normpath(directory)).parts or (".",)
        if parts == ("tensorboard",):
            return None  # the default, in another spelling
        if first in {*WRITTEN, LOCK} - {"tensorboard"}:
            raise PydanticCustomError(
                "written_by_the_run",
                "a run itself writes {first} in its folder; choose another name, or null for tensorboard",
                {"first": first},
            )
        return str(PurePath(directory))


class WeightsAndBiasesParams(EpisodeTableParams):
    # Texts leave this machine where somebody says so.
    episodes: int = Field(0, ge=0, description="Trajectories in the table of a step; 0: no table, and no text is sent.")
    mode: Literal["online", "offline", "disabled"] | None = Field(
        None, description="Where runs go; null means what the variable WANDB_MODE says, else online."
    )
    entity: str | None = Field(None, description="User or team the run belongs to; null means the account's default.")
    tags: tuple[str, ...] = Field((), description="Tags of the run.")
    group: str | None = Field(None, description="Group the run is shown in.")
