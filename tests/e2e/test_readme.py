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

from rllm.config.layers import layer_from_file
from rllm_core.plugins import in_process

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")

SHORT = ("rllm.trainer.total_batches=2", "rllm.rollout.n=4", "rllm.trainer.val_before_train=false")


def _file(name: str, language: str) -> str:
    """The block after the sentence that names a file."""
    (text,) = re.findall(rf"`{re.escape(name)}`[^`]*\n\n```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return str(text)


def test_it_says_what_it_is_then_how_to_install_write_choose_and_train() -> None:
    assert re.findall(r"^## (.*)$", README, re.MULTILINE)[:4] == [
        "Install",
        "A plugin in ten lines",
        "The demo",
        "A real model",
    ]
    first = README.partition("\n## ")[0]
    assert [line[4:].partition("**")[0] for line in first.splitlines() if line.startswith("- **")] == [
        "You use verl",
        "You use TRL",
        "You use rLLM",
        "The numbers are checked",
        "No setting is ignored",
    ]


def test_the_plugin_has_ten_lines() -> None:
    assert len([line for line in _file("my_estimators.py", "python").splitlines() if line]) == 10


def test_every_link_leads_somewhere() -> None:
    root = Path(__file__).parents[2]
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README):
        assert (root / target).exists(), target


def test_the_sections_run_from_top_to_bottom(
    forked_rllm: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "my_estimators.py").write_text(_file("my_estimators.py", "python"))
    (tmp_path / "run.yaml").write_text(_file("run.yaml", "yaml"))
    section = README.partition("\n## Install\n")[2].partition("\n## The demo\n")[0]
    commands = [line.partition("#")[0].strip() for line in re.findall(r"^    rllm (train .*)$", section, re.MULTILINE)]
    assert commands == ["train guess", "train guess --config run.yaml"]

    for command in commands:
        done = forked_rllm(*command.split(), *SHORT)
        assert done.returncode == 0, done.stderr

    directory = tmp_path / "runs/rllm-training/above_median"
    assert layer_from_file(directory / "config.yaml").tree["rllm"]["algorithm"]["adv_estimator"] == "above_median"
    steps = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
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
