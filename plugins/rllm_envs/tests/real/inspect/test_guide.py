"""The task, the commands and the settings of docs/how-to/inspect.md."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import documents
import pytest
import yaml
from killed_runs import training_metrics

from rllm_envs.inspect.options import InspectParams

PAGE = "docs/how-to/inspect.md"


@pytest.mark.long
def test_commands_of_the_page_work(tmp_path: Path) -> None:
    (program,) = documents.blocks(PAGE, "python")
    (tmp_path / "sums.py").write_text(program)
    environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
    outputs = []
    for line in documents.blocks(PAGE, "sh")[0].splitlines():
        words = shlex.split(line)[1:]
        command = [sys.executable, "-m", "rllm", *words, *(("--json",) if words[0] == "eval" else ())]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    for text in (outputs[0], outputs[2]):
        assert '"tasks": 9' in json.dumps(json.loads(text))
    metrics = training_metrics(tmp_path)
    assert len(metrics) == 2
    for step in metrics:
        assert step["env/gateway/trained_tokens"] == step["env/gateway/sampled_tokens"] > 0
        assert step["batch/ended_env_done"] == 1


def test_settings_of_the_page_are_accepted() -> None:
    (text,) = documents.blocks(PAGE, "yaml")
    InspectParams(task="t", **yaml.safe_load(text)["rllm"]["env"]["env_args"])
