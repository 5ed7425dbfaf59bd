"""docs/how-to/open-spiel.md, as written."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_envs.open_spiel.games import load_game

Rllm = Callable[..., subprocess.CompletedProcess[str]]
GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "open-spiel.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(line) for line in re.findall(r"^    rllm (.*)$", GUIDE, re.MULTILINE)]


@pytest.mark.long
def test_commands_of_the_guide_train_and_evaluate(forked_rllm: Rllm, tmp_path: Path) -> None:
    for words in COMMANDS:
        done = forked_rllm(*words)
        assert done.returncode == 0, done.stderr
    (metrics,) = tmp_path.glob("runs/*/*/metrics.jsonl")
    steps = [step for step in map(json.loads, metrics.read_text().splitlines()) if "actor/loss" in step]
    assert len(steps) == 2
    assert all(step["env/turns"] >= 1 for step in steps)


def test_configuration_of_the_guide_is_accepted() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    env = yaml.safe_load(text)["rllm"]["env"]
    registry = Registry.load(allow={"rllm-envs"})
    params = choose(registry, "environment", {"name": env["name"], **env["env_args"]}, "rllm.env.name").params
    assert load_game(params).num_players() == 2
