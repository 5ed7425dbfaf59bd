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

from rllm.config.layers import layer_from_file
from rllm_core.plugins.registry import Registry

from .conftest import plan_of

GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "your-agent.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    rllm (.*)$", GUIDE, re.MULTILINE)
SHORT = ("data.max_response_length=4", "rllm.sdk.store.path=traces.db")
QUICKLY = (*SHORT, "rllm.trainer.total_batches=1", "rllm.rollout.n=2", "data.train_batch_size=1", "--overwrite")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Write the files of the guide."""
    names = re.findall(r"This is `(\w+\.py)`", GUIDE)
    for name, source in zip(names, blocks("python"), strict=True):
        (tmp_path / name).write_text(source)
    (tmp_path / "train.jsonl").write_text(blocks("json")[0])
    return tmp_path


def words_of(command: str) -> list[str]:
    """Return a command with the model `tiny` and the Python of this test."""
    return shlex.split(command.replace("./some-hf-directory", "tiny").replace("[python,", f"[{sys.executable},"))


@pytest.mark.long
@pytest.mark.parametrize("number", [number for number, each in enumerate(COMMANDS) if each.startswith("train")])
def test_the_trainings_of_the_guide_train(
    number: int, directory: Path, forked_rllm: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = forked_rllm(*words_of(COMMANDS[number]), *QUICKLY)
    assert done.returncode == 0, done.stderr
    lines = (directory / "runs/rllm-training/default/metrics.jsonl").read_text().splitlines()
    (step,) = [step for step in map(json.loads, lines) if "env/gateway/trained_tokens" in step]
    assert step["env/gateway/trained_tokens"] == step["env/gateway/sampled_tokens"] > 0
    assert step["batch/ended_error"] == 0


@pytest.mark.long
def test_evaluation_of_the_guide_runs(
    directory: Path, forked_rllm: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    (command,) = (each for each in COMMANDS if each.startswith("eval"))
    done = forked_rllm(*words_of(command), *SHORT)
    assert done.returncode == 0, done.stderr
    assert "question" in done.stdout


def test_the_yaml_of_the_guide_is_a_configuration(
    directory: Path, worlds: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory)
    (function,) = blocks("yaml")
    settings = {"rllm.env.name": "question", "rllm.reward": ["exact"]}

    (directory / "function.yaml").write_text(function)
    plan = plan_of(settings, worlds, [layer_from_file(directory / "function.yaml")])
    assert plan.workflow.qualified_name == "rllm-gateway/agent"
    assert (plan.workflow.params.agent, plan.workflow.params.timeout) == ("my_agent.py:solve", 600.0)
    assert plan.config.rllm.agent.max_steps == 8
