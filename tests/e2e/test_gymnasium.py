"""The commands and settings of docs/how-to/gymnasium.md."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import documents
import pytest
import yaml

from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_envs.gymnasium.environment import Gymnasium, check_environment

Rllm = Callable[..., subprocess.CompletedProcess[str]]
PAGE = "docs/how-to/gymnasium.md"


@pytest.mark.long
def test_the_commands_of_the_page_work(forked_rllm: Rllm, tmp_path: Path) -> None:
    dry, short, with_model = (shlex.split(line)[1:] for line in documents.commands(PAGE) if line.startswith("rllm "))
    tiny = ("--dry-run", "--overwrite", "--model", "tiny")
    for words in (dry, [*short, "rllm.agent.max_steps=4", "data.train_batch_size=4"], [*with_model, *tiny]):
        done = forked_rllm(*words)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    (metrics,) = tmp_path.glob("runs/*/*/metrics.jsonl")
    assert len([step for step in map(json.loads, metrics.read_text().splitlines()) if "actor/loss" in step]) == 2


def test_the_configuration_and_the_first_message_of_the_page_are_real() -> None:
    (text,) = documents.blocks(PAGE, "yaml")
    env = yaml.safe_load(text)["rllm"]["env"]
    params = choose(
        Registry.load(allow={"rllm-envs"}), "environment", {"name": env["name"], **env["env_args"]}, "rllm.env.name"
    ).params
    check_environment(params)
    lake = Gymnasium(params.model_copy(update={"id": "FrozenLake-v1", "prompt": None, "template": None, "actions": []}))
    assert re.sub(r"\s+\Z", "", documents.blocks(PAGE, "text")[0]) == lake.reset({"seed": 0})
