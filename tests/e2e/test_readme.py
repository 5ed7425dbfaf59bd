"""The plugin of the README and the YAML that chooses it, as they stand there."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from rllm_core.config.layers import layer_from_file
from rllm_core.plugins import in_process

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")

SHORT = ("rllm.trainer.total_batches=2", "rllm.rollout.n=4", "rllm.trainer.val_before_train=false")


def _file(name: str, language: str) -> str:
    """The block after the sentence that names a file."""
    (text,) = re.findall(rf"`{re.escape(name)}`[^`]*\n\n```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return str(text)


def test_the_section_runs_from_top_to_bottom(
    forked_rllm: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "my_estimators.py").write_text(_file("my_estimators.py", "python"))
    (tmp_path / "run.yaml").write_text(_file("run.yaml", "yaml"))
    section = README.partition("\n## Install packages")[2].partition("\n## ")[0]
    commands = re.findall(r"^    rllm (train .*)$", section, re.MULTILINE)
    assert commands == ["train guess", "train guess --config run.yaml"]

    for command in commands:
        done = forked_rllm(*command.split(), *SHORT)
        assert done.returncode == 0, done.stderr

    folder = tmp_path / "runs/rllm-training/above_median"
    assert layer_from_file(folder / "config.yaml").tree["rllm"]["algorithm"]["adv_estimator"] == "above_median"
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = [step for step in steps if "actor/loss" in step]
    assert len(trained) == 2
    assert any(step["advantage/agent/max"] > 0 for step in trained)


def test_the_task_of_others_trains_with_any_model(
    forked_rllm: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "sums.yaml").write_text(_file("sums.yaml", "yaml"))
    (command,) = re.findall(r"^rllm (train reasoning_gym.*)$", README, re.MULTILINE)
    pretrained = "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert pretrained in command

    done = forked_rllm(*command.replace(pretrained, "tiny").split(), *SHORT)

    assert done.returncode == 0, done.stderr


def test_the_plugin_computes_what_its_docstring_says() -> None:
    names: dict[str, Any] = {}
    try:
        exec(_file("my_estimators.py", "python"), names)
    finally:
        in_process.forget("estimator", "above_median")
    rewards = np.array([0.0, 1.0, 1.0, 0.5, 0.0])
    inputs = SimpleNamespace(rewards=rewards, group_offsets=np.array([0, 3, 5]))

    assert names["above_median"](inputs, None).values.tolist() == [-1.0, 0.0, 0.0, 0.25, -0.25]
    assert rewards.tolist() == [0.0, 1.0, 1.0, 0.5, 0.0]
