"""One Ctrl-C while reward processes start stops everything at once, and changes no file."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from expecting import check_values
from forked import ForkedProcess
from live_processes import is_alive

REWARDS = """
import os
import time
from pathlib import Path

def score(rollout):
    return 1.0

if Path("slow").exists():
    Path("process").write_text(str(os.getpid()))
    time.sleep(600)
"""
OF_MINE = ("--reward", "rewards.py:score", "data.max_response_length=1", "--model", "tiny")
COMMANDS = {
    "train": ("train", "question", "--data", "rows.jsonl", *OF_MINE, "rllm.trainer.total_batches=1", "--overwrite"),
    "eval": ("eval", "question", "--data", "rows.jsonl", *OF_MINE, "rllm.rollout.n_val=2"),
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "1+1", "answer": "2"}) + "\n")
    (tmp_path / "rewards.py").write_text(REWARDS)
    return tmp_path


def until_it_starts(directory: Path, command: ForkedProcess) -> int:
    """Return the reward's process."""
    file = directory / "process"
    while not (file.exists() and file.read_text()):
        assert command.poll() is None, command.communicate(timeout=60)
        time.sleep(0.02)
    return int(file.read_text())


def everything_in(directory: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted((directory / "runs").rglob("*")) if file.is_file()}


def stop(start_forked_rllm: Any, directory: Path, command: str, number: signal.Signals) -> str:
    """Stop a command while a reward's process starts, and return its output. Both must end."""
    (directory / "slow").touch()
    process = start_forked_rllm(*COMMANDS[command])
    of_reward = until_it_starts(directory, process)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == (-number if number is signal.SIGKILL else 128 + number), errors
    assert "Traceback" not in errors
    while is_alive(of_reward):  # a process that remains is a hang
        time.sleep(0.02)
    return str(output)


@pytest.mark.usefixtures("with_view")
@pytest.mark.parametrize(
    ("command", "number"),
    [("train", signal.SIGKILL), pytest.param("eval", signal.SIGINT, marks=pytest.mark.smoke)],
)
def test_signal_while_reward_processes_start_ends_them(
    start_forked_rllm: Any, directory: Path, command: str, number: signal.Signals
) -> None:
    stop(start_forked_rllm, directory, command, number)


@pytest.mark.long
def test_existing_run_stays_and_same_command_trains(start_forked_rllm: Any, forked_rllm: Any, directory: Path) -> None:
    assert forked_rllm(*COMMANDS["train"]).returncode == 0
    before = everything_in(directory)
    output = stop(start_forked_rllm, directory, "train", signal.SIGTERM)
    check_values(output, "stopped before", "runs/rllm-training/question-1")
    assert everything_in(directory) == before
    (directory / "slow").unlink()
    assert forked_rllm(*COMMANDS["train"]).returncode == 0
