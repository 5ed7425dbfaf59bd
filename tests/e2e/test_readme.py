"""The README's plugin and the YAML that chooses it, unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rllm.config.layers import layer_from_file
from rllm_core.plugins import in_process
from rllm_core.plugins.kinds import KINDS
from rllm_core.plugins.registry import Registry

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")

SHORT = (
    "rllm.trainer.total_batches=2",
    "rllm.rollout.n=4",
    "data.train_batch_size=8",
    "rllm.trainer.val_before_train=false",
)


def _file(name: str, language: str) -> str:
    """Return the block after the sentence with a file's name."""
    (text,) = re.findall(rf"`{re.escape(name)}`[^`]*\n\n```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return str(text)


def test_the_numbers_and_names_of_plugins_are_those_of_the_registry() -> None:
    registry = Registry.load()
    # Other tests of this process may have registered estimators.
    estimators = [each.plugin.name for each in registry.all("estimator") if each.distribution.startswith("rllm")]
    algorithms = README.partition("\n## Algorithms\n")[2]
    of_verl = re.findall(r"`(\w+)`", algorithms.partition("verl's own ")[2].partition("\n")[0])
    losses = [
        each.plugin.name
        for each in registry.all("loss")
        if each.plugin.name not in of_verl and each.distribution.startswith("rllm")
    ]

    assert f"{len(estimators) - 3} more advantage estimators" in README
    assert f"There are {len(KINDS)} kinds of plugin" in README
    named = {
        name for cell in re.findall(r"^\|(.*)\|$", algorithms, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    }
    assert named == {*estimators, *losses}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Write the files of the page."""
    files = {"train.jsonl": "json", "rewards.py": "python", "my_estimators.py": "python", "run.yaml": "yaml"}
    for name, language in (files | {"sums.yaml": "yaml"}).items():
        (tmp_path / name).write_text(_file(name, language))
    return tmp_path


@pytest.mark.long
@pytest.mark.usefixtures("nothing_stays_registered")
def test_each_command_has_a_plan(rllm_here: Callable[..., Any], directory: Path) -> None:
    (directory / "my_agent.py").write_text("def solve(task):\n    return task['answer']\n")
    commands = re.findall(r"^\|.*\| `rllm (train .*)` \|$", README, re.MULTILINE)
    assert len(commands) >= 6
    (sums,) = re.findall(r"^rllm (train reasoning_gym.*)$", README, re.MULTILINE)
    for command in [*commands, sums]:
        words = re.sub("Qwen/Qwen3-0.6B|HuggingFaceTB/SmolLM2-135M-Instruct", "tiny", command).split()
        done = rllm_here(*words, "--dry-run")
        assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.smoke
def test_the_sections_run_from_top_to_bottom(forked_rllm: Callable[..., Any], directory: Path) -> None:
    section = README.partition("\n## Your data")[2].partition("\n## A pretrained model\n")[0]
    commands = re.findall(r"^rllm (train .*)$", section, re.MULTILINE)
    assert len(commands) == 2

    for command in commands:
        done = forked_rllm(*command.replace("./some-hf-directory", "tiny").split(), *SHORT)
        assert done.returncode == 0, done.stderr

    run = directory / "runs/rllm-training/above_median"
    assert layer_from_file(run / "config.yaml").tree["rllm"]["algorithm"]["adv_estimator"] == "above_median"
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [step for step in steps if "actor/loss" in step]
    assert len(trained) == 2
    assert any(step["advantage/agent/max"] > 0 for step in trained)


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
