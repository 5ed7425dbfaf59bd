"""The dataset `hf`. Its options and its reader are separate, so listing plugins imports no data library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts.dataset import DatasetPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl
from rllm_data.source import ENDINGS, find_source

requires_api = 1


def _check(params: Any) -> None:
    find_source(params.path)


@hookimpl
def rllm_datasets() -> Iterable[DatasetPlugin[Any]]:
    yield DatasetPlugin(
        name="hf",
        summary="Rows of parquet, json, csv or arrow files, of directories, and of the Hugging Face hub.",
        load_params=load_from("rllm_data.columns", "HfParams"),
        load=load_from("rllm_data.dataset", "read_tasks"),
        check=_check,
        is_remote=lambda params: find_source(params.path).kind == "hub",
        family_option="path",
        suffixes=ENDINGS,
    )
