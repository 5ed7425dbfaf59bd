"""The flags that name tasks and rewards, and what they stand for."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from rllm_core.cli.configuring import PLANNING_FLAGS, Request, config_options, read_request

OF_EVAL = ("seed", "val-data", "reward")


def request_of(*words: str, flags: tuple[str, ...] = PLANNING_FLAGS) -> Request:
    """What a command with these flags reads from its words."""
    read: list[Request] = []

    @click.command()
    @config_options(*flags)
    def command(words: tuple[str, ...], model: str | None, files: tuple[str, ...], **given: Any) -> None:
        read.append(read_request(words, model, files, given))

    done = CliRunner().invoke(command, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return read[0]


@pytest.mark.parametrize(
    ("word", "dataset"),
    [
        ("train.jsonl", {"name": "jsonl", "path": "train.jsonl"}),
        ("../it's a {file}, v1.jsonl", {"name": "jsonl", "path": "../it's a {file}, v1.jsonl"}),
        ("data/train.parquet", {"name": "hf", "path": "data/train.parquet"}),
    ],
)
def test_data_that_ends_like_a_file_is_one(word: str, dataset: dict[str, str]) -> None:
    assert request_of("--data", word).choices == {"data.train_dataset": dataset}
    assert request_of("--val-data", word).choices == {"data.val_dataset": dataset}


@pytest.mark.parametrize("name", ["mine", "my-package/mine", "hf:org/data-v1.5"])
def test_data_without_an_ending_is_the_name_of_a_dataset(name: str) -> None:
    assert request_of("--data", name).overrides == [f"data.train_dataset={name}"]


def test_rewards_are_names_and_functions_in_files_in_order() -> None:
    function = {"name": "python", "function": "my rewards.py:score"}
    words = ("--reward", "exact", "--reward", "my rewards.py:score", "--reward", "python:rewards.py:score")
    assert request_of(*words).choices == {"rllm.reward": ["exact", function, "python:rewards.py:score"]}


def test_without_the_flags_nothing_is_chosen() -> None:
    assert request_of("question", "--seed", "3") == Request("question", None, (), ["rllm.trainer.seed=3"])


def test_what_only_plays_has_one_set_of_tasks_with_the_shorter_name_too() -> None:
    named = [request_of(flag, "val.jsonl", flags=OF_EVAL).choices for flag in ("--data", "--val-data")]
    assert named == [{"data.val_dataset": {"name": "jsonl", "path": "val.jsonl"}}] * 2
