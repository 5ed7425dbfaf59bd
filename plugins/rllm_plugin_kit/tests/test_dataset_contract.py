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


def opens_the_file(params: Options) -> list[Task]:
    if params.path:
        Path(params.path).read_text()
    return good(params)


def seeds_everybody(params: Options) -> list[Task]:
    random.seed(0)
    return drawn(params)


def moves(params: Options) -> list[Task]:
    os.chdir("/")
    return good(params)


BAD = ({"path": "not-there"},)


SHARED = {"number": 0}


def plugin(load: Any) -> DatasetPlugin[Any]:
    return DatasetPlugin(name="mine", summary="For tests.", params=Options, load=lambda: load)


@pytest.mark.parametrize("dataset", [good, lambda params: Lazy() if good(params) else []])
def test_a_good_dataset_has_no_complaints(dataset: Any, complaints: Any) -> None:
    assert complaints(DatasetContract, plugin(dataset), bad_options=BAD) == {}


@pytest.mark.parametrize(
    ("dataset", "test", "said"),
    [
        (lambda params: [], "it_has_tasks", "has no task"),
        (drawn, "tasks_are_the_same_every_time", "returns different tasks"),
        (lambda params: iter(good(params)), "it_has_tasks", "has tasks that"),
        (lambda params: [task.data for task in good(params)], "it_has_tasks", "'number'"),
        (lambda params: [Task(id="task", data={"n": n}) for n in range(2)], "tasks_have_different_ids", "'task'"),
        (lambda params: [Task(id="")], "tasks_have_different_ids", "has a task"),
        (lambda params: [Task(id="task", data={"numbers": (1, 2)})], "task_data_is_json", "'task'"),
        (lambda params: [Task(id="task", data={"number": Path()})], "task_data_is_json", "'task'"),
        (lambda params: [Task(id=name, data=SHARED) for name in "ab"], "tasks_do_not_share_their_data", "one mapping"),
        (opens_the_file, "bad_options_are_rejected_with_a_reason", "FileNotFoundError"),
        (lambda params: good(Options()), "bad_options_are_rejected_with_a_reason", "'not-there'"),
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
