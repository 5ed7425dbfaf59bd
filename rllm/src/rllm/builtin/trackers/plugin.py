"""The trackers `console`, `tensorboard` and `wandb`."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import PurePath
from typing import Any, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from rllm_core.contracts.plugin import Params
from rllm_core.contracts.tracker import TrackerPlugin
from rllm_core.errors import PluginError
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1


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
        from rllm.runs.run_directory import WRITTEN  # listing plugins must not wait for this import
        from rllm_record.run_files import LOCK

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


def require_package(package: str, tracker: str, load: Callable[[], Any]) -> Callable[[], Any]:
    """Return a tracker's `load` that first checks for `package`. The extra with the tracker's name installs it."""

    def load_with_package() -> Any:
        try:
            import_module(package)
        except ModuleNotFoundError as error:
            if error.name != package:  # the package is installed, but one of its dependencies is not
                raise
            raise PluginError(
                "missing-package",
                f"tracker {tracker!r} needs the package {package}, which is not installed.",
                f"pip install 'rllm[{tracker}]'",
            ) from error
        return load()

    return load_with_package


@hookimpl
def rllm_trackers() -> Iterable[TrackerPlugin[Any]]:
    yield TrackerPlugin(
        name="console",
        summary="Progress in the terminal. Plain lines if the output is not a terminal.",
        load=load_from("rllm.tracking.console", "ConsoleTracker"),
    )
    yield TrackerPlugin(
        name="tensorboard",
        summary="Event files for TensorBoard.",
        params=TensorboardParams,
        load=require_package(
            "tensorboardX", "tensorboard", load_from("rllm.builtin.trackers.tensorboard", "TensorboardTracker")
        ),
    )
    yield TrackerPlugin(
        name="wandb",
        summary="A run of Weights & Biases, online or offline.",
        params=WeightsAndBiasesParams,
        load=require_package(
            "wandb", "wandb", load_from("rllm.builtin.trackers.weights_and_biases", "WeightsAndBiasesTracker")
        ),
    )
