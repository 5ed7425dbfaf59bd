"""The flags that name tasks and rewards, and what they stand for."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner
from expecting import expect_error

from rllm.cli.configuring import PLANNING_FLAGS, Request, TrainCommand, config_options, plan_for, read_request
from rllm_core.errors import ConfigError

OF_EVAL = ("seed", "val-data", "reward")


def request_of(*words: str, flags: tuple[str, ...] = PLANNING_FLAGS) -> Request:
    """What a command with these flags reads from its words."""
    read: list[Request] = []

    @click.command(cls=TrainCommand)
    @config_options(*flags)
    def command(words: tuple[str, ...], model: str | None, files: tuple[str, ...], **given: Any) -> None:
        read.append(read_request(words, model, files, given))

    done = CliRunner().invoke(command, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return read[0]


def test_data_flag_keeps_file_or_name_as_typed() -> None:
    for word in ("train.jsonl", "../it's a {file}, v1.jsonl", "my-package/mine", "hf:org/data-v1.5"):
        assert request_of("--data", word).choices == {"data.train_dataset": word}
        assert request_of("--val-data", word).choices == {"data.val_dataset": word}
        assert request_of("--data", word, flags=OF_EVAL).choices == {"data.val_dataset": word}


def test_rewards_are_names_and_file_functions_in_order() -> None:
    words = ("--reward", "exact", "--reward", "my rewards.py:score", "--reward", "python:rewards.py:score")
    chosen = ["exact", "python:my rewards.py:score", "python:rewards.py:score"]
    assert request_of(*words).choices == {"rllm.reward": chosen}


def test_tools_flag_chooses_the_tool_calling_workflow() -> None:
    assert request_of("--tools", "my tools.py:add, b.py:look").choices == {
        "rllm.workflow.workflow_args.tools": ["my tools.py:add", "b.py:look"],
        "rllm.workflow.name": "tool_calling",
    }


def test_objective_flag_chooses_objective_and_sets_its_key() -> None:
    request = request_of("--stored", "my sessions/", "--objective", "echo")
    assert request.choices == {
        "data.train_dataset": {"name": "stored", "path": "my sessions/"},
        "rllm.objective": ["stored", "echo"],
    }
    plan = plan_for(request)
    assert [stage.registered.name for stage in plan.stages if stage.registered.name in ("stored", "echo")]
    assert plan.config.rllm.algorithm.rollout_correction.tis_mode == "token"
    with pytest.raises(click.UsageError, match=r"--stored .* data\.train_dataset"):
        read_request((), None, (), {"data": "a.jsonl", "stored": "b"})


def test_teacher_flag_takes_address_path_or_name() -> None:
    for word, teacher in (
        ("http://127.0.0.1:8000/v1", "server:http://127.0.0.1:8000/v1"),
        ("./directory", "model:./directory"),
        ("runs/a/checkpoints/latest", "model:runs/a/checkpoints/latest"),
        ("model:tiny", "model:tiny"),
        ("policy:either/or", "policy:either/or"),
        ("policy:1+1=2", "policy:1+1=2"),
        ("mine", "mine"),
    ):
        assert request_of("--teacher", word).choices == {"rllm.teacher": teacher}


def test_teachers_of_data_sources_are_one_teacher() -> None:
    words = ("--teacher", "math=./math", "--teacher", "code=policy:a=b")
    teachers = {"math": "model:./math", "code": "policy:a=b"}
    assert request_of(*words).choices == {"rllm.teacher": {"name": "by_source", "teachers": teachers}}
    for wrong in (("a=model:tiny", "model:tiny"), ("a=model:tiny", "a=policy:b")):
        with pytest.raises(click.UsageError):
            read_request((), None, (), {"teacher": wrong})


def test_objective_opd_replaces_rewards_with_a_teacher() -> None:
    plan = plan_for(request_of("guess", "--objective", "opd", "--teacher", "model:tiny"))
    stages = {stage.registered.name for stage in plan.stages}
    assert plan.objective.name == "opd"
    assert "distill" in stages
    assert not {"check_rewards", "advantages"} & stages


def test_objective_without_its_stage_is_an_error() -> None:
    with expect_error(ConfigError, "objective-without-stage", "'opd'", "rllm/distill"):
        plan_for(request_of("guess", "--objective", "opd", "rllm.pipeline.stages=null"))


def test_without_the_flags_nothing_is_chosen() -> None:
    assert request_of("question", "--seed", "3") == Request("question", None, (), ["rllm.trainer.seed=3"])
