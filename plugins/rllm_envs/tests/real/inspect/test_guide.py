"""The task, the commands and the settings of docs/how-to/inspect.md."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import documents
import yaml
from killed_runs import training_metrics

from rllm_envs.inspect.options import InspectParams

DEADLINE = 250
PAGE = "docs/how-to/inspect.md"


def test_commands_of_the_page_work(tmp_path: Path) -> None:
    """The last command is the first command with a different model."""
    (program,) = documents.blocks(PAGE, "python")
    (tmp_path / "sums.py").write_text(program)
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "RLLM_BLOCK_PLUGINS": "rllm-view"}
    evaluate, train, _ = documents.blocks(PAGE, "sh")[0].splitlines()
    outputs = []
    for line in (f"{evaluate} --json", train):
        command = [sys.executable, "-m", *shlex.split(line)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert json.loads(outputs[0])["environments"][0]["tasks"] == 9
    metrics = training_metrics(tmp_path)
    assert len(metrics) == 2
    for step in metrics:
        assert step["env/gateway/trained_tokens"] == step["env/gateway/sampled_tokens"] > 0
        assert step["batch/ended_env_done"] == 1


def test_settings_of_the_page_are_accepted() -> None:
    (text,) = documents.blocks(PAGE, "yaml")
    InspectParams(task="t", **yaml.safe_load(text)["rllm"]["env"]["env_args"])
