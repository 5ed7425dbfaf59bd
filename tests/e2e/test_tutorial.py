"""docs/tutorial.md, word for word, from top to bottom in an empty directory. Runs end after two steps."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from documents import blocks
from expecting import check_printed

GUIDE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    rllm (.*)$", GUIDE, re.MULTILINE)
REFUSED = "rllm.algorithm.eps_clip=0.3"
PRETRAINED = "HuggingFaceTB/SmolLM2-135M-Instruct"
# The tasks of the guide's file are for training only, so validation settings have no effect.
SHORT = (
    "rllm.unused_keys=warn",
    "rllm.trainer.total_batches=2",
    "rllm.rollout.n=4",
    "rllm.rollout.n_val=1",
    "rllm.trainer.val_before_train=false",
)


def files() -> dict[str, str]:
    """Return the block after each sentence with a file's name, and the README's tasks."""
    named = re.findall(
        r"`([\w.]+\.(?:py|yaml))`[^\n]*\n(?:[^\n]+\n)?\n```\w+\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL
    )
    return {"train.jsonl": blocks("README.md", "json")[0], **dict(named)}


def words_of(command: str) -> list[str]:
    """Return a command with a local model and a short training."""
    words = shlex.split(command.replace(PRETRAINED, "tiny"))
    return [*words, *(SHORT if words[0] == "train" and "--dry-run" not in words else ())]


def test_the_tutorial_has_the_files_and_commands_that_are_tried_here() -> None:
    assert set(files()) == {"train.jsonl", "rewards.py", "sums.yaml"}
    assert [command.split()[0] for command in COMMANDS] == ["train", "eval", *["train"] * 3, "config", *["train"] * 3]


@pytest.mark.long
def test_the_tutorial_runs_from_top_to_bottom(
    forked_rllm: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    for name, text in files().items():
        (tmp_path / name).write_text(text)

    for command in COMMANDS:
        done = forked_rllm(*words_of(command))
        if REFUSED in command and command.startswith("train"):
            assert done.returncode == 2
            check_printed(done.stderr, "unused-key", "`")
        else:
            assert done.returncode == 0, f"{command}\n{done.stderr}"

    runs = {directory.name for directory in (tmp_path / "runs/rllm-training").iterdir()}
    assert runs == {"default", "rloo", "mine", "sums"}
