"""Samples of a task as tasks of a split."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error

from rllm.rows.task_content import content_of
from rllm_core.errors import ConfigError
from rllm_envs.inspect.loading import InspectTasks

from .bridge import episodes, make_params
from .script import say_to_prompt


@pytest.mark.parametrize(
    ("options", "train", "val"),
    [
        ({"val_size": 2}, ["1", "2", "3"], ["4", "5"]),
        ({"val_size": 0}, ["1", "2", "3", "4", "5"], []),
        ({"val_size": 1, "train_size": 2}, ["1", "2"], ["5"]),
        ({"train_args": {"count": 2}}, ["1", "2"], ["1", "2", "3", "4", "5"]),
        ({"train_args": {"count": 9}, "train_size": 1, "val_size": 3}, ["1"], ["1", "2", "3"]),
    ],
)
def test_samples_of_a_split(options: dict[str, Any], train: list[str], val: list[str]) -> None:
    params = make_params("sums", **options)
    tasks = [*InspectTasks.tasks("train", params), *InspectTasks.tasks("val", params)]
    assert [each.data["sample"] for each in tasks] == train + val
    assert len({each.id for each in tasks}) == len(tasks)


def test_split_without_samples_is_rejected() -> None:
    with expect_error(ConfigError, "bad-value"):
        InspectTasks.tasks("train", make_params("sums"))
    with expect_error(ConfigError, "too-few-tasks"):
        InspectTasks.tasks("val", make_params("sums", val_size=6))
    for val_size in (5, 6):
        with expect_error(ConfigError, "too-few-tasks"):
            InspectTasks.tasks("train", make_params("sums", val_size=val_size))
    assert len(InspectTasks.tasks("val", make_params("sums", val_size=5))) == 5


def test_content_of_samples_changes_with_their_task() -> None:
    def contents(name: str, **args: Any) -> list[Any]:
        return [content_of(task)["original"] for task in InspectTasks.tasks("val", make_params(name, args=args))]

    assert contents("sums") == contents("sums") != contents("sums", first=2)
    assert contents("sums")[0]["input"] == "What is 1 + 1?"


def test_training_arguments_do_not_change_validation() -> None:
    ours, engine = episodes(say_to_prompt, make_params("sums", args={"count": 1}, train_args={"first": 3}))
    assert [episode.trajectories[0].reward for episode in ours] == [1.0]
    assert "What is 1 + 1?" in "".join(map(chr, engine.calls[0][0]))
