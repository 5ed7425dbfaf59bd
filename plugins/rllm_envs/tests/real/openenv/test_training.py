"""The commands of docs/how-to/openenv.md, and a killed run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import documents
import pytest
import yaml
from forked import CommandServer, ForkedProcess
from killed_runs import kill_after, latest_weights, training_metrics

from rllm_envs.openenv.options import OpenEnvParams

Start = Callable[..., ForkedProcess]
PAGE = "docs/how-to/openenv.md"
SMALL = ("rllm.env.env_args.val_size=0", "data.max_prompt_length=300", "data.max_response_length=8")
STEPS, KILLED_AFTER, DEADLINE = 2, 1, 250


@pytest.fixture
def start(command_server: CommandServer) -> Start:
    """Start `rllm WORDS` in a directory, in a process that need not import torch and transformers first."""

    def run(directory: Path, *words: str) -> ForkedProcess:
        directory.mkdir(exist_ok=True)
        environ = {**os.environ, "HF_HUB_OFFLINE": "1", "RLLM_BLOCK_PLUGINS": "rllm-view"}
        environ["PYTHONPATH"] = os.pathsep.join([".", os.environ["PYTHONPATH"]])
        return command_server.start("rllm.cli.main", words, directory, environ)

    return run


def _finish(process: ForkedProcess) -> None:
    _, errors = process.communicate(DEADLINE)
    assert process.returncode == 0, errors


def test_commands_of_the_page_work(start: Start, tmp_path: Path) -> None:
    (program,) = documents.blocks(PAGE, "python")
    (tmp_path / "digits.py").write_text(program)
    lines = [line.partition(" rllm ")[2] for line in documents.blocks(PAGE, "sh")[0].splitlines()]
    _, train, evaluate = (shlex.split(line) for line in lines)
    _finish(start(tmp_path, *train, *SMALL))
    _finish(start(tmp_path, *evaluate, *SMALL[1:]))
    assert len(training_metrics(tmp_path)) == STEPS


def test_settings_of_the_page_are_accepted() -> None:
    (text,) = documents.blocks(PAGE, "yaml")
    env = yaml.safe_load(text)["rllm"]["env"]
    assert OpenEnvParams(server=env["name"].removeprefix("openenv:"), **env["env_args"])


@pytest.mark.long
def test_killed_run_ends_with_the_same_weights(start: Start, tmp_path: Path) -> None:
    """Rollouts run one by one. Otherwise the batches of the engine depend on time, and the weights up to rounding."""
    words = (
        *(
            "train",
            "openenv:oe_games:echo",
            "rllm.env.env_args.action=message",
            *SMALL,
            f"rllm.trainer.total_batches={STEPS}",
            "rllm.trainer.save_freq=1",
        ),
        *("rllm.rollout.n=2", "data.train_batch_size=2", "rllm.workflow.n_parallel_tasks=1"),
    )
    _finish(start(tmp_path / "whole", *words))
    killed = start(tmp_path / "killed", *words)
    kill_after(killed, tmp_path / "killed", KILLED_AFTER, DEADLINE)
    _finish(start(tmp_path / "killed", *words, "--resume"))
    assert [step["actor/grad_norm"] > 0 for step in training_metrics(tmp_path / "whole")] == [True] * STEPS
    assert latest_weights(tmp_path / "killed") == latest_weights(tmp_path / "whole") != {}
