"""The trackers `console`, `tensorboard` and `wandb`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm.builtin.trackers.options import TensorboardParams, WeightsAndBiasesParams
from rllm.builtin.trackers.packages import needing
from rllm_core.contracts.tracker import TrackerPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1


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
        load=needing(
            "tensorboardX", "tensorboard", load_from("rllm.builtin.trackers.tensorboard", "TensorboardTracker")
        ),
    )
    yield TrackerPlugin(
        name="wandb",
        summary="A run of Weights & Biases, online or offline.",
        params=WeightsAndBiasesParams,
        load=needing(
            "wandb", "wandb", load_from("rllm.builtin.trackers.weights_and_biases", "WeightsAndBiasesTracker")
        ),
    )
