"""Options of these trackers, in a separate module so that listing plugins does not import client libraries."""

from __future__ import annotations

import os.path
from pathlib import PurePath
from typing import Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from rllm_core.contracts.plugin import Params


class EpisodeTableParams(Params):
    """Options of trackers that show a table of a few trajectories."""

    episodes: int = Field(4, ge=0, description="Number of trajectories in a step's table. 0: no table.")
    episodes_every: int = Field(10, ge=1, description="Number of steps between tables.")


class TensorboardParams(EpisodeTableParams):
    directory: str | None = Field(
        None, min_length=1, description="Directory of the event files, relative to the run. null: tensorboard."
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
                "the run itself writes {first} in its directory: choose another name, or null for tensorboard",
                {"first": first},
            )
        return str(PurePath(directory))


class WeightsAndBiasesParams(EpisodeTableParams):
    # The default is 0, because text may leave this machine only if the user requests it.
    episodes: int = Field(0, ge=0, description="Number of trajectories in a step's table. 0: no table and no text.")
    mode: Literal["online", "offline", "disabled"] | None = Field(
        None, description="Mode of W&B. null: the value of the variable WANDB_MODE, or online."
    )
    entity: str | None = Field(None, description="User or team that owns the run. null: the account's default.")
    tags: tuple[str, ...] = Field((), description="Tags of the run.")
    group: str | None = Field(None, description="Group of the run in W&B.")
