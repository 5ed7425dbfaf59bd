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


def ends(process: int) -> bool:
    """Wait for its end. A process that remains is a hang."""
    while Path(f"/proc/{process}").exists() and "State:\tZ" not in Path(f"/proc/{process}/status").read_text():
        time.sleep(0.02)
    return True


def everything_in(directory: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted((directory / "runs").rglob("*")) if file.is_file()}


@pytest.mark.long
@pytest.mark.usefixtures("with_view")
@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("train", signal.SIGINT),
        ("train", signal.SIGTERM),
        ("eval", signal.SIGINT),
        ("eval", signal.SIGTERM),
    ],
)
def test_a_signal_while_processes_of_rewards_start_ends_it(
    start_forked_rllm: Any, forked_rllm: Any, directory: Path, command: str, number: signal.Signals
) -> None:
    (directory / "slow").touch()
    process = start_forked_rllm(*COMMANDS[command])
    of_reward = until_it_starts(directory, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in errors
    assert ends(of_reward)


@pytest.mark.long
def test_the_run_that_was_there_stays_and_the_same_command_trains(
    start_forked_rllm: Any, forked_rllm: Any, directory: Path
) -> None:
    assert forked_rllm(*COMMANDS["train"]).returncode == 0
    before = everything_in(directory)
    (directory / "slow").touch()
    process = start_forked_rllm(*COMMANDS["train"])
    until_it_starts(directory, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    check_values(output, "stopped before", "runs/rllm-training/default")
    assert everything_in(directory) == before
    (directory / "slow").unlink()
    assert forked_rllm(*COMMANDS["train"]).returncode == 0


def test_a_process_that_starts_ends_with_a_run_that_is_killed(start_forked_rllm: Any, directory: Path) -> None:
    (directory / "slow").touch()
    process = start_forked_rllm(*COMMANDS["train"])
    of_reward = until_it_starts(directory, process)
    process.kill()
    assert ends(of_reward)
