"""The trackers `console`, `mlflow`, `tensorboard`, `trackio` and `wandb`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from rllm_core.contracts.tracker import TrackerPlugin
from rllm_core.errors import PluginError
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1


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
        name="mlflow",
        summary="A run of MLflow, in a file or on a tracking server.",
        load_params=load_from("rllm.builtin.trackers.mlflow_runs", "MlflowParams"),
        load=require_package("mlflow", "mlflow", load_from("rllm.builtin.trackers.mlflow_runs", "MlflowTracker")),
    )
    yield TrackerPlugin(
        name="tensorboard",
        summary="Event files for TensorBoard.",
        load_params=load_from("rllm.builtin.trackers.tensorboard", "TensorboardParams"),
        load=require_package(
            "tensorboardX", "tensorboard", load_from("rllm.builtin.trackers.tensorboard", "TensorboardTracker")
        ),
    )
    yield TrackerPlugin(
        name="trackio",
        summary="A run of Trackio, in its directory on this machine.",
        load_params=load_from("rllm.builtin.trackers.trackio_runs", "TrackioParams"),
        load=require_package("trackio", "trackio", load_from("rllm.builtin.trackers.trackio_runs", "TrackioTracker")),
    )
    yield TrackerPlugin(
        name="wandb",
        summary="A run of Weights & Biases, online or offline.",
        load_params=load_from("rllm.builtin.trackers.weights_and_biases", "WeightsAndBiasesParams"),
        load=require_package(
            "wandb", "wandb", load_from("rllm.builtin.trackers.weights_and_biases", "WeightsAndBiasesTracker")
        ),
    )
