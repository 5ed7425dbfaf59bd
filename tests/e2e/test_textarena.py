"""docs/how-to/textarena.md, unchanged."""

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
from rllm_envs.textarena.games import check_game, single_player_games

Rllm = Callable[..., subprocess.CompletedProcess[str]]
GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "textarena.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(line) for line in re.findall(r"^    rllm (.*)$", GUIDE, re.MULTILINE)]


@pytest.mark.long
def test_the_commands_of_the_guide_work(forked_rllm: Rllm, tmp_path: Path) -> None:
    dry, short, with_model = COMMANDS
    for words in (dry, short, [*with_model, "--dry-run", "--overwrite", "--model", "tiny"]):
        done = forked_rllm(*words)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    (metrics,) = tmp_path.glob("runs/*/*/metrics.jsonl")
    steps = [step for step in map(json.loads, metrics.read_text().splitlines()) if "actor/loss" in step]
    assert len(steps) == 2
    assert all(step["env/turns"] >= 1 for step in steps)


def test_unsupported_game_stops_a_dry_run(rllm_here: Rllm) -> None:
    done = rllm_here("train", "textarena:Wordle-v0", "--dry-run")
    assert done.returncode == 2
    assert "downloads word lists" in done.stderr


def test_the_configuration_of_the_guide_is_one() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    env = yaml.safe_load(text)["rllm"]["env"]
    registry = Registry.load(allow={"rllm-envs"})
    params = choose(registry, "environment", {"name": env["name"], **env["env_args"]}, "rllm.env.name").params
    check_game(params.game, params.options)


def test_games_of_the_guide_are_the_supported_ones() -> None:
    games = single_player_games()
    assert f"\n{len(games)} games" in GUIDE
    listed = GUIDE.partition("of these families:")[2].partition(". Many")[0]
    assert re.findall(r"`(\w+)`", listed) == list(dict.fromkeys(game.partition("-")[0] for game in games))
