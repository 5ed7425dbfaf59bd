"""The trackers `jsonl`, `tensorboard`, `wandb` and `picture`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from rllm.trackers.options import JsonLinesParams, TensorboardParams, WeightsAndBiasesParams
from rllm.trackers.packages import needing
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.tracker import TrackerPlugin


def _from(module: str, name: str) -> Callable[[], Any]:
    """A `load` that imports ``rllm.trackers.<module>`` when it is called."""
    return lambda: getattr(import_module(f"rllm.trackers.{module}"), name)


def trackers() -> Iterable[TrackerPlugin[Any]]:
    yield TrackerPlugin(
        name="jsonl",
        summary="One JSON object per line, in a file.",
        params=JsonLinesParams,
        load=_from("jsonl", "JsonLinesTracker"),
    )
    yield TrackerPlugin(
        name="tensorboard",
        summary="Event files for TensorBoard.",
        params=TensorboardParams,
        load=needing("tensorboardX", "tensorboard", _from("tensorboard", "TensorboardTracker")),
    )
    yield TrackerPlugin(
        name="wandb",
        summary="A run of Weights & Biases, online or offline.",
        params=WeightsAndBiasesParams,
        load=needing("wandb", "wandb", _from("weights_and_biases", "WeightsAndBiasesTracker")),
    )
    yield TrackerPlugin(
        name="picture",
        summary="reward_curve.png in the run folder, in every run.",
        params=NoParams,
        load=_from("picture_tracker", "PictureTracker"),
        every_run=True,
    )
