"""Datasets that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from rllm_core.contracts import DatasetPlugin, Params
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError
from rllm_plugin_kit import DatasetContract


class Options(Params):
    number: int = Field(default=5, description="How many.")
    path: str = Field(default="", description="A file.")


def good(params: Options) -> list[Task]:
    """Numbers."""
    if params.path and not Path(params.path).exists():
        raise ConfigError("made-up", f"{params.path} is not there.", "Fix `path`.")
    return [Task(id=str(number), data={"number": number}) for number in range(params.number)]


class Lazy(Sequence[Task]):
    """A thousand million tasks."""

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: Any) -> Any:
        return Task(id=str(index), data={"number": index})


def drawn(params: Options) -> list[Task]:
    return random.sample(good(params), 5)


def generated(params: Options) -> Any:
    return (task for task in good(params))


def rows(params: Options) -> Any:
    return [task.data for task in good(params)]


def same_ids(params: Options) -> list[Task]:
    return [Task(id="task", data={"number": number}) for number in range(2)]


def tuples(params: Options) -> list[Task]:
    return [Task(id="task", data={"numbers": (1, 2)})]


def objects(params: Options) -> list[Task]:
    return [Task(id="task", data={"number": Path()})]


def one_mapping(params: Options) -> list[Task]:
    data = {"number": 0}
    return [Task(id=str(number), data=data) for number in range(2)]


def opens_the_file(params: Options) -> list[Task]:
    if params.path:
        Path(params.path).read_text()
    return good(params)


def passes_over_a_missing_file(params: Options) -> list[Task]:
    return good(Options(number=params.number))


def seeds_everybody(params: Options) -> list[Task]:
    random.seed(0)
    return drawn(params)


def moves(params: Options) -> list[Task]:
    os.chdir("/")
    return good(params)


BAD = ({"path": "not-there"},)


def plugin(load: Any) -> DatasetPlugin[Any]:
    return DatasetPlugin(name="mine", summary="For tests.", params=Options, load=lambda: load)


@pytest.mark.parametrize("dataset", [good, lambda params: Lazy() if good(params) else []])
def test_a_good_dataset_has_no_complaints(dataset: Any, complaints: Any) -> None:
    assert complaints(DatasetContract, plugin(dataset), bad_options=BAD) == {}


def test_hook_example_keeps_the_contract(complaints: Any, example: Any) -> None:
    assert complaints(DatasetContract, example("dataset")) == {}


@pytest.mark.parametrize(
    ("dataset", "test", "said"),
    [
        (lambda params: [], "it_has_tasks", "has no task"),
        (drawn, "tasks_are_the_same_every_time", "returns different tasks"),
        (generated, "it_has_tasks", "has tasks that"),
        (rows, "it_has_tasks", "'number'"),
        (same_ids, "tasks_have_different_ids", "'task'"),
        (lambda params: [Task(id="")], "tasks_have_different_ids", "has a task"),
        (tuples, "task_data_is_json", "'task'"),
        (objects, "task_data_is_json", "'task'"),
        (one_mapping, "tasks_do_not_share_their_data", "has one mapping"),
        (opens_the_file, "bad_options_are_rejected_with_a_reason", "FileNotFoundError"),
        (passes_over_a_missing_file, "bad_options_are_rejected_with_a_reason", "'not-there'"),
        (seeds_everybody, "process_wide_state_is_unchanged", "leaves Python's random"),
        (moves, "process_wide_state_is_unchanged", "leaves the working"),
        (lambda params: 1 / 0, "it_has_tasks", "ZeroDivisionError"),
    ],
)
def test_contract_reports_the_mistake(
    dataset: Any, test: str, said: str, complaint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in complaint(DatasetContract, plugin(dataset), test, bad_options=BAD)
