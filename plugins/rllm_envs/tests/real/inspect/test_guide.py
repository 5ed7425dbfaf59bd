"""The task, the commands and the settings of docs/how-to/inspect.md."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import documents
import pytest
import yaml
from forked import CommandServer
from killed_runs import training_metrics

from rllm_envs.inspect.options import InspectParams

DEADLINE = 250
PAGE = "docs/how-to/inspect.md"


@pytest.mark.long
def test_commands_of_the_page_work(tmp_path: Path, command_server: CommandServer) -> None:
    (program,) = documents.blocks(PAGE, "python")
    (tmp_path / "sums.py").write_text(program)
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "RLLM_BLOCK_PLUGINS": "rllm-view"}
    counts = []
    for line in documents.blocks(PAGE, "sh")[0].splitlines():
        words = shlex.split(line)[1:]
        is_eval = words[0] == "eval"
        process = command_server.start("rllm.cli.main", (*words, *["--json"] * is_eval), tmp_path, environ)
        output, errors = process.communicate(DEADLINE)
        assert process.returncode == 0, errors
        if is_eval:
            counts.append(json.loads(output)["environments"][0]["tasks"])
    # A checkpoint is evaluated with its run's options.
    assert counts == [9, 3]
    metrics = training_metrics(tmp_path)
    assert len(metrics) == 2
    for step in metrics:
        assert step["env/gateway/trained_tokens"] == step["env/gateway/sampled_tokens"] > 0
        assert step["batch/ended_env_done"] == 1


def test_settings_of_the_page_are_accepted() -> None:
    (text,) = documents.blocks(PAGE, "yaml")
    InspectParams(task="t", **yaml.safe_load(text)["rllm"]["env"]["env_args"])
