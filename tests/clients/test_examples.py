"""examples/agents_sdk: the unchanged agent, and the training of its page with fewer steps."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gateway_world import World
from tool_model import save_tool_model

from .rollout import ProgramRunner

EXAMPLES = Path(__file__).parents[2] / "examples"
CALL = '<call>{"name": "multiply", "arguments": {"a": 6, "b": 7}}</call>'


def test_the_agent_calls_its_tool_and_answers(runner: ProgramRunner, world: World) -> None:
    world.policy.response = lambda prompt: "42" if prompt.endswith("<t>42<a>") else CALL
    task = json.loads((EXAMPLES / "agents_sdk/tasks.jsonl").read_text().splitlines()[0])
    done = runner.run(str(EXAMPLES / "agents_sdk/agent"), task)
    assert done.answer == task["answer"] == "42"
    assert (len(done.sampled), done.rows) == (2, 1)


def test_the_command_of_the_page_trains(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    shutil.copytree(EXAMPLES / "agents_sdk", tmp_path, dirs_exist_ok=True)
    (tmp_path / "model").mkdir()
    save_tool_model(tmp_path / "model")
    section = (EXAMPLES / "README.md").read_text().partition("\n## agents_sdk\n")[2]
    command = re.findall(r"^    rllm (.*)$", section, re.MULTILINE)[0]
    python = pytestconfig.getoption("--client-python").absolute()
    words = (
        f"rllm.workflow.workflow_args.command=[{python},agent.py]",
        "rllm.trainer.total_batches=1",
        "rllm.rollout.n=2",
        "rllm.sdk.store.path=traces.db",
    )
    done = subprocess.run(
        [sys.executable, "-m", "rllm", *shlex.split(command.replace("Qwen/Qwen3-0.6B", "./model")), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    (metrics,) = tmp_path.glob("runs/rllm-training/agents_sdk/metrics.jsonl")
    (step,) = [step for step in map(json.loads, metrics.read_text().splitlines()) if "actor/loss" in step]
    assert step["env/gateway/trained_tokens"] == step["env/gateway/sampled_tokens"] > 0
    assert step["batch/ended_error"] < 1
