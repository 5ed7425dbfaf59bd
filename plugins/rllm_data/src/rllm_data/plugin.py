"""The dataset `hf` and its options. The reader is separate, so listing plugins imports no data library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from rllm_core.contracts.dataset import DatasetPlugin
from rllm_core.contracts.plugin import Params
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl
from rllm_data.source import ENDINGS, find_source

Part = Literal["train", "val"]
LayoutName = Literal["auto", "verl", "trl", "messages", "qa"]
DEFAULT_ID_KEY = "id"


class HfParams(Params):
    path: str = Field(
        min_length=1,
        description="A file (.parquet, .json, .jsonl, .csv, .arrow), a directory of such files, a directory from "
        "`save_to_disk`, or the id of a dataset on the hub.",
    )
    split: str = Field(
        "train",
        min_length=1,
        description="The split, or a slice of it: `train[:100]`, `test[10%:]`. A file has only the split `train`.",
    )
    config: str | None = Field(
        None,
        min_length=1,
        description="Configuration of a dataset on the hub or of a directory. null means its only configuration.",
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Mapping from our name to the source's column: `{prompt: text, answer: meta.gold}`. A dot selects "
        "a field of a struct. Columns also keep their own names.",
    )
    drop_columns: list[str] = Field(
        default_factory=list, description="Columns to drop, for example images, which are not JSON."
    )
    format: LayoutName = Field(
        "auto",
        description="Layout of the rows, which decides the columns of `prompt` and `answer`. auto detects the layout "
        "from the columns. If it detects none, rows stay unchanged.",
    )
    id_key: str = Field(
        DEFAULT_ID_KEY,
        min_length=1,
        description="Column with the tasks' ids. If the rows do not have it, ids are row numbers of the split, from 0.",
    )
    data_source: str | None = Field(
        None,
        min_length=1,
        description="Name of the tasks in validation tables. null means each row's own `data_source`, or the name of "
        "the file, directory or dataset if a row has none.",
    )
    val_fraction: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of the rows for validation. A hash of the row without its id decides. null means that the "
        "rows are not split.",
    )
    part: Part = Field("train", description="Part of the rows to read if `val_fraction` is set.")
    shuffle_seed: int | None = Field(
        None, ge=0, description="Seed of a shuffle before `limit`. null means the rows' order."
    )
    limit: int | None = Field(None, gt=0, description="Maximum number of tasks. null means all.")

    @model_validator(mode="after")
    def _check_part(self) -> Self:
        if self.part == "val" and self.val_fraction is None:
            raise ValueError("part is val, but val_fraction is not set: set val_fraction, or remove part")
        return self


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
