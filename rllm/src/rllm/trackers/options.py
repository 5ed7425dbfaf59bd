"""Options of these trackers. Apart from the trackers, so that listing plugins imports no client library."""

from __future__ import annotations

import os.path
from pathlib import PurePath
from typing import Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from rllm_core.contracts.plugin import Params


def checked_path(path: str | None, default: str) -> str | None:
    """The path, or None for the tracker's default.

    Raises:
        PydanticCustomError: the run itself writes a file or folder of that name.
    """
    if path is None:
        return None
    from rllm.runs.run_directory import LOCK, WRITTEN  # looking at plugins should not wait for it

    first, *_ = parts = PurePath(os.path.normpath(path)).parts or (".",)
    if parts == (default,):
        return None  # two spellings of one file are one
    if first in {*WRITTEN, LOCK} - {default}:
        raise PydanticCustomError(
            "written_by_the_run",
            "a run itself writes {first} in its folder; choose another name, or null for {default}",
            {"first": first, "default": default},
        )
    return str(PurePath(path))


class JsonLinesParams(Params):
    path: str | None = Field(
        None, min_length=1, description="File, relative to the run folder; null means tracker.jsonl."
    )

    @field_validator("path")
    @classmethod
    def _not_one_of_the_run(cls, path: str | None) -> str | None:
        return checked_path(path, "tracker.jsonl")


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
    def _not_one_of_the_run(cls, directory: str | None) -> str | None:
        return checked_path(directory, "tensorboard")


class WeightsAndBiasesParams(EpisodeTableParams):
    # Texts leave this machine where somebody says so.
    episodes: int = Field(0, ge=0, description="Trajectories in the table of a step; 0: no table, and no text is sent.")
    mode: Literal["online", "offline", "disabled"] | None = Field(
        None, description="Where runs go; null means what the variable WANDB_MODE says, else online."
    )
    entity: str | None = Field(None, description="User or team the run belongs to; null means the account's default.")
    tags: tuple[str, ...] = Field((), description="Tags of the run.")
    group: str | None = Field(None, description="Group the run is shown in.")
