"""Tasks are found by their index, also in endless tasksets."""

from __future__ import annotations

import random

import pytest
from expecting import expect_error

from rllm.rows.task_content import content_of
from rllm_core.errors import ConfigError
from rllm_envs.verifiers.options import VerifiersParams
from rllm_envs.verifiers.tasks import Splits, VerifiersTasks


def _prompts(params: VerifiersParams, order: list[int]) -> dict[int, str]:
    splits = Splits(params)
    return {index: splits.find({"index": index, "split": "train"}).data.prompt for index in order}


def test_an_index_and_a_seed_name_one_task() -> None:
    params = VerifiersParams(id="vf_endless", seed=3)
    assert _prompts(params, [5, 0, 2]) == _prompts(params, [0, 2, 5])
    assert _prompts(params, [0]) != _prompts(params.model_copy(update={"seed": 4}), [0])


def test_loading_tasks_leaves_the_random_numbers_of_others() -> None:
    random.seed(1)
    expected = random.Random(1).random()
    _prompts(VerifiersParams(id="vf_endless"), [9])
    assert random.random() == expected


@pytest.mark.parametrize(
    ("options", "train", "val"),
    [
        ({"id": "vf_endless"}, range(1000), range(0)),
        ({"id": "vf_endless", "train_size": 4, "val_size": 2}, range(4), range(4, 6)),
        ({"id": "vf_adds", "config": {"taskset": {"tasks": 5}}, "val_size": 2}, range(3), range(3, 5)),
        ({"id": "vf_adds", "config": {"taskset": {"tasks": 5}}, "train_size": 9}, range(5), range(0)),
        ({"id": "vf_adds", "val_taskset": {"first": 7, "tasks": 9}, "val_size": 6}, range(2), range(6)),
    ],
)
def test_splits_share_no_task(options: dict[str, object], train: range, val: range) -> None:
    params = VerifiersParams(**options)  # type: ignore[arg-type]
    found = {split: VerifiersTasks.tasks(split, params) for split in ("train", "val")}  # type: ignore[arg-type]
    assert [task.data["index"] for task in found["train"]] == list(train)
    assert [task.data["index"] for task in found["val"]] == list(val)
    assert not {task.id for task in found["train"]} & {task.id for task in found["val"]}


def test_too_few_validation_tasks_are_rejected() -> None:
    with expect_error(ConfigError, "too-few-tasks"):
        VerifiersTasks.tasks("val", VerifiersParams(id="vf_adds", train_size=1, val_size=3))


def test_content_of_tasks_changes_with_their_taskset() -> None:
    def contents(first: int) -> list[object]:
        params = VerifiersParams(id="vf_adds", config={"taskset": {"first": first, "tasks": 3}})
        return [content_of(task) for task in VerifiersTasks.tasks("train", params)]

    assert contents(1) == contents(1) != contents(2)
    (first, *_) = VerifiersTasks.tasks("train", VerifiersParams(id="vf_endless"))
    assert content_of(first)["original"] is None
