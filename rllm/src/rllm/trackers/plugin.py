"""The trackers `tensorboard` and `wandb`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm.trackers.options import TensorboardParams, WeightsAndBiasesParams
from rllm.trackers.packages import needing
from rllm_core.contracts.tracker import TrackerPlugin
from rllm_core.lazy import load_from


def trackers() -> Iterable[TrackerPlugin[Any]]:
    yield TrackerPlugin(
        name="tensorboard",
        summary="Event files for TensorBoard.",
        params=TensorboardParams,
        load=needing("tensorboardX", "tensorboard", load_from("rllm.trackers.tensorboard", "TensorboardTracker")),
    )
    yield TrackerPlugin(
        name="wandb",
        summary="A run of Weights & Biases, online or offline.",
        params=WeightsAndBiasesParams,
        load=needing("wandb", "wandb", load_from("rllm.trackers.weights_and_biases", "WeightsAndBiasesTracker")),
    )
