"""docs/how-to/your-agent.md, word for word, in an empty directory."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from documents import blocks, commands, text_of

GUIDE = "docs/how-to/your-agent.md"
COMMANDS = [each.removeprefix("rllm ") for each in commands(GUIDE) if each.startswith("rllm ")]
SHORT = ("data.max_response_length=4", "rllm.sdk.store.path=traces.db")
QUICKLY = (*SHORT, "rllm.trainer.total_batches=1", "rllm.rollout.n=2", "data.train_batch_size=1", "--overwrite")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Write the files of the guide."""
    names = re.findall(r"This is `(\w+\.py)`", text_of(GUIDE))
    for name, source in zip(names, blocks(GUIDE, "python"), strict=True):
        (tmp_path / name).write_text(source)
    (tmp_path / "train.jsonl").write_text(blocks(GUIDE, "json")[0])
    return tmp_path


def words_of(command: str) -> list[str]:
    """Return a command with the model `tiny` and the Python of this test."""
    return shlex.split(command.replace("./some-hf-directory", "tiny").replace("[python,", f"[{sys.executable},"))


TRAININGS = [number for number, each in enumerate(COMMANDS) if each.startswith("train")]


@pytest.mark.long
@pytest.mark.parametrize("number", TRAININGS)
def test_the_trainings_of_the_guide_train(
    number: int, directory: Path, rllm_here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = rllm_here(*words_of(COMMANDS[number]), *QUICKLY)
    assert done.returncode == 0, done.stderr
    lines = (directory / "runs/rllm-training/question-1/metrics.jsonl").read_text().splitlines()
    (step,) = [step for step in map(json.loads, lines) if "env/gateway/trained_tokens" in step]
    assert step["env/gateway/trained_tokens"] == step["env/gateway/sampled_tokens"] > 0
    assert step["batch/ended_error"] == 0


@pytest.mark.long
def test_evaluation_of_the_guide_runs(
    directory: Path, rllm_here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    (command,) = (each for each in COMMANDS if each.startswith("eval"))
    done = rllm_here(*words_of(command), *SHORT)
    assert done.returncode == 0, done.stderr
    assert "question" in done.stdout
