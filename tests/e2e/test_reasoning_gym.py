"""`rllm train reasoning_gym:GENERATOR`, and docs/how-to/reasoning-gym.md, unchanged."""

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
from reasoning_gym.factory import CURRICULA, DATASETS
from reasoning_gym.utils import SYSTEM_PROMPTS

from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_envs.reasoning_gym.environment import ReasoningGym
from rllm_envs.reasoning_gym.options import ReasoningGymParams
from rllm_envs.reasoning_gym.resolving import check

Rllm = Callable[..., subprocess.CompletedProcess[str]]
GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "reasoning-gym.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(line) for line in re.findall(r"^    rllm (.*)$", GUIDE, re.MULTILINE)]


def _score(generator: str, words: str, index: int) -> float:
    params = ReasoningGymParams(generator=generator, train_size=20)
    world = ReasoningGym(params)
    world.reset(ReasoningGym.tasks("train", params)[index].data)
    return world.step(words).reward


@pytest.mark.long
def test_the_commands_of_the_guide_work(forked_rllm: Rllm, tmp_path: Path) -> None:
    dry, short, with_model = COMMANDS
    for words in (dry, short, [*with_model, "--dry-run", "--overwrite", "--model", "tiny"]):
        done = forked_rllm(*words)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    (metrics,) = tmp_path.glob("runs/*/*/metrics.jsonl")
    steps = list(map(json.loads, metrics.read_text().splitlines()))
    assert sum("actor/loss" in step for step in steps) == 2
    assert sum("val/chain_sum/pass@1" in step for step in steps) == 2


def test_a_wrong_name_stops_a_dry_run(rllm_here: Rllm) -> None:
    done = rllm_here("train", "reasoning_gym:chain_summ", "--dry-run")
    assert done.returncode == 2
    assert "Did you mean 'chain_sum'" in done.stderr


@pytest.mark.parametrize("text", re.findall(r"^```yaml\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL))
def test_every_configuration_of_the_guide_is_one(text: str) -> None:
    env: dict[str, Any] = yaml.safe_load(text)["rllm"]["env"]
    registry = Registry.load(allow={"rllm-envs"})
    check(choose(registry, "environment", {"name": env["name"], **env["env_args"]}, "rllm.env.name").params)


def test_names_and_numbers_of_the_guide_are_those_of_the_library() -> None:
    assert f"has {len(DATASETS)} generators" in GUIDE
    assert f"{len(CURRICULA)} generators\nhave a curriculum" in GUIDE
    assert ", ".join(f"`{name}`" for name in SYSTEM_PROMPTS) in GUIDE
    assert all("<answer>" in text for text in SYSTEM_PROMPTS.values())
    ways = get_args(ReasoningGymParams.model_fields["answer"].annotation)
    assert re.findall(r"^\| `(\w+)` \| the ", GUIDE, re.MULTILINE) == list(ways)


def test_the_scores_to_know_about_are_so() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`|anything) \| 1", GUIDE, re.MULTILINE)
    assert len(rows) == 3
    for generator, words in rows:
        scores = [_score(generator, words or "anything", index) for index in range(20)]
        assert sum(score == 1.0 for score in scores) >= 18, generator
