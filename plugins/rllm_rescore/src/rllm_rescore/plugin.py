"""What rllm-rescore offers to runs: stored episodes as training data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rllm_core.contracts.dataset import Dataset, DatasetPlugin
from rllm_core.contracts.stage import Stage, StagePlugin
from rllm_core.errors import PluginError
from rllm_core.plugins import hookimpl
from rllm_rescore.stored.options import StoredParams

requires_api = 1


def _dataset() -> Dataset:
    _require_record()
    from rllm_rescore.stored.dataset import read_stored

    return read_stored


def _stage() -> Callable[..., Stage]:
    _require_record()
    from rllm_rescore.stored.stage import BringStored

    return BringStored


def _require_record() -> None:
    try:
        import rllm_record  # noqa: F401
    except ModuleNotFoundError as error:
        raise PluginError("Stored episodes are read by rllm-record.", "pip install rllm-record") from error


@hookimpl
def rllm_datasets() -> Iterable[DatasetPlugin[Any]]:
    yield DatasetPlugin(
        name="stored",
        summary="Tasks of stored episodes, with the attempts that the stage `stored` trains on.",
        params=StoredParams,
        load=_dataset,
    )


@hookimpl
def rllm_stages() -> Iterable[StagePlugin[Any]]:
    yield StagePlugin(
        name="stored",
        summary="Bring the stored attempts at every task, in place of playing it.",
        load=_stage,
        reads=frozenset({"tasks"}),
        writes=frozenset({"episodes"}),
        honours=frozenset({"sampling.train.temperature"}),
        off_policy=True,
    )
