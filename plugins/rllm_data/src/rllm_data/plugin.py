"""Plugins of rllm-data: the dataset `hf`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts.dataset import DatasetPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl
from rllm_data.options import HfParams
from rllm_data.source import ENDINGS, find_source

requires_api = 1


def _check(params: HfParams) -> None:
    find_source(params.path)


def _is_remote(params: HfParams) -> bool:
    return find_source(params.path).kind == "hub"


@hookimpl
def rllm_datasets() -> Iterable[DatasetPlugin[Any]]:
    yield DatasetPlugin(
        name="hf",
        summary="Rows of parquet, json, csv or arrow files, of directories, and of the Hugging Face hub.",
        params=HfParams,
        load=load_from("rllm_data.dataset", "read_tasks"),
        check=_check,
        is_remote=_is_remote,
        family_option="path",
        suffixes=ENDINGS,
    )
