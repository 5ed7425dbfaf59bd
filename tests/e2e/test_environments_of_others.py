"""The pages of environments of other projects: their runs, settings, names and numbers."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from documents import blocks, commands, text_of

from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry

Rllm = Callable[..., subprocess.CompletedProcess[str]]
OTHERS = ("open-spiel", "reasoning-gym", "textarena")
NAMES = [
    pytest.param("gymnasium", marks=pytest.mark.smoke),
    *(pytest.param(each, marks=pytest.mark.long) for each in OTHERS),
]


def page_of(name: str) -> str:
    return f"docs/how-to/{name}.md"


def params_of(text: str) -> Any:
    """Return the environment's parameters in the YAML of a page."""
    env = yaml.safe_load(text)["rllm"]["env"]
    registry = Registry.load(allow={"rllm-envs"})
    return choose(registry, "environment", {"name": env["name"], **env["env_args"]}, "rllm.env.name").params


@pytest.mark.parametrize("name", NAMES)
def test_short_run_of_the_page_trains_two_steps(name: str, rllm_here: Rllm, tmp_path: Path) -> None:
    (command,) = [each for each in commands(page_of(name)) if "rllm.trainer.total_batches=2" in each]
    few = (
        "rllm.unused_keys=warn",
        "rllm.agent.max_steps=4",
        "rllm.rollout.n=2",
        "data.train_batch_size=2",
        "rllm.env.env_args.val_size=2",
    )
    done = rllm_here(*shlex.split(command)[1:], *few, "rllm.env.env_args.val_size=2")
    assert done.returncode == 0, done.stderr
    (metrics,) = tmp_path.glob("runs/*/*/metrics.jsonl")
    lines = list(map(json.loads, metrics.read_text().splitlines()))
    steps = [line for line in lines if "actor/loss" in line]
    assert len(steps) == 2
    assert all(step["env/turns"] >= 1 for step in steps if name in ("open-spiel", "textarena"))
    assert sum(any(key.startswith("val/") for key in line) for line in lines) == 2


@pytest.mark.parametrize(
    ("environment", "said"),
    [("textarena:Wordle-v0", "downloads word lists"), ("reasoning_gym:chain_summ", "Did you mean 'chain_sum'")],
)
def test_unsupported_name_stops_a_dry_run(rllm_here: Rllm, environment: str, said: str) -> None:
    done = rllm_here("train", environment, "--dry-run")
    assert done.returncode == 2
    assert said in done.stderr


def test_configuration_and_first_message_of_gymnasium_are_real() -> None:
    from rllm_envs.gymnasium.environment import Gymnasium, check_environment

    (text,) = blocks(page_of("gymnasium"), "yaml")
    params = params_of(text)
    check_environment(params)
    lake = Gymnasium(params.model_copy(update={"id": "FrozenLake-v1", "prompt": None, "template": None, "actions": []}))
    assert re.sub(r"\s+\Z", "", blocks(page_of("gymnasium"), "text")[0]) == lake.reset({"seed": 0})


@pytest.mark.long
def test_configuration_of_open_spiel_is_accepted() -> None:
    from rllm_envs.open_spiel.games import load_game

    (text,) = blocks(page_of("open-spiel"), "yaml")
    assert load_game(params_of(text)).num_players() == 2


@pytest.mark.long
def test_configuration_and_games_of_textarena_are_real() -> None:
    from rllm_envs.textarena.games import check_game, single_player_games

    (text,) = blocks(page_of("textarena"), "yaml")
    params = params_of(text)
    check_game(params)
    games, page = single_player_games(), text_of(page_of("textarena"))
    assert f"\n{len(games)} games" in page
    listed = page.partition("of these families:")[2].partition(". Many")[0]
    assert re.findall(r"`(\w+)`", listed) == list(dict.fromkeys(game.partition("-")[0] for game in games))


@pytest.mark.long
def test_reasoning_gym_has_real_configurations_names_and_scores() -> None:
    from reasoning_gym.factory import CURRICULA, DATASETS
    from reasoning_gym.utils import SYSTEM_PROMPTS

    from rllm_envs.reasoning_gym.environment import ReasoningGym
    from rllm_envs.reasoning_gym.options import ReasoningGymParams
    from rllm_envs.reasoning_gym.processes import check

    for text in blocks(page_of("reasoning-gym"), "yaml"):
        check(params_of(text))
    page = text_of(page_of("reasoning-gym"))
    assert f"has {len(DATASETS)} generators" in page
    assert f"{len(CURRICULA)} generators\nhave a curriculum" in page
    assert ", ".join(f"`{name}`" for name in SYSTEM_PROMPTS) in page
    ways = get_args(ReasoningGymParams.model_fields["answer"].annotation)
    assert re.findall(r"^\| `(\w+)` \| the ", page, re.MULTILINE) == list(ways)
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`|anything) \| 1", page, re.MULTILINE)
    assert len(rows) == 3
    for generator, words in rows:
        params = ReasoningGymParams(generator=generator, train_size=20)
        world, scores = ReasoningGym(params), list[float]()
        for task in ReasoningGym.tasks("train", params):
            world.reset(task.data)
            scores.append(world.step(words or "anything").reward)
        assert sum(score == 1.0 for score in scores) >= 18, generator
