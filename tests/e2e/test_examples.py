"""The commands of examples/README.md, each in a copy of its directory, with fewer steps."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rllm_record.steps import StepFiles

EXAMPLES = Path(__file__).parents[2] / "examples"
PAGE = (EXAMPLES / "README.md").read_text(encoding="utf-8")
SHORT = (
    "rllm.trainer.total_batches=2",
    "rllm.trainer.val_before_train=false",
    "rllm.trainer.test_freq=-1",
    "data.train_batch_size=8",
)
Rllm = Callable[..., "subprocess.CompletedProcess[str]"]


def commands(example: str, program: str) -> list[list[str]]:
    """Return the arguments of `program` in the lines of an example."""
    section = PAGE.partition(f"\n## {example}\n")[2].partition("\n## ")[0]
    return [shlex.split(line) for line in re.findall(rf"^    {program} (.*)$", section, re.MULTILINE)]


@pytest.fixture
def example(tmp_path: Path) -> Callable[[str], Path]:
    """Copy an example into the directory of the commands."""
    return lambda name: Path(shutil.copytree(EXAMPLES / name, tmp_path, dirs_exist_ok=True))


def trained(run: subprocess.CompletedProcess[str], directory: Path, name: str) -> list[dict[str, Any]]:
    """Return the steps of a finished run."""
    assert run.returncode == 0, run.stderr
    lines = (directory / "runs/rllm-training" / name / "metrics.jsonl").read_text().splitlines()
    steps = [step for step in map(json.loads, lines) if "actor/loss" in step]
    assert len(steps) == 2
    return steps


def test_the_page_lists_every_example_with_commands() -> None:
    directories = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
    assert sorted(re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)) == directories
    assert all(commands(name, "rllm") for name in directories)


@pytest.mark.long
def test_a_reward_function_on_a_parquet(example: Callable[[str], Path], rllm_here: Rllm) -> None:
    directory = example("parquet_reward")
    ((script,),) = commands("parquet_reward", "python")
    subprocess.run([sys.executable, script], cwd=directory, check=True)
    (command,) = commands("parquet_reward", "rllm")
    for step in trained(rllm_here(*command, *SHORT, "rllm.rollout.n=4"), directory, "parquet_reward"):
        assert step["env/reward.python"] == pytest.approx(step["reward/agent/mean"])
        assert step["batch/episodes"] == 8 * 4


@pytest.mark.long
def test_two_roles_with_their_own_estimators(example: Callable[[str], Path], rllm_here: Rllm) -> None:
    directory = example("two_roles")
    (command,) = commands("two_roles", "rllm")
    steps = trained(rllm_here(*command, *SHORT, "rllm.rollout.n=4"), directory, "two_roles")
    assert all({"reward/solver/mean", "reward/judge/mean"} <= set(step) for step in steps)
    # Advantages within groups have the mean 0. The judge's advantage is its reward.
    for step in steps:
        assert step["advantage/solver/mean"] == pytest.approx(0, abs=1e-6)
        assert step["advantage/judge/mean"] == pytest.approx(step["reward/judge/mean"])


@pytest.mark.long
def test_parent_and_helpers_have_separate_estimators(
    example: Callable[[str], Path], tool_model: Path, forked_rllm: Rllm
) -> None:
    directory = example("sub_agents")
    (command,) = commands("sub_agents", "rllm")
    (directory / command[-1]).symlink_to(tool_model)
    done = forked_rllm(*command, *SHORT, "rllm.rollout.n=2", "data.max_response_length=4", "rllm.record=tokens")
    for step in trained(done, directory, "question-1"):
        assert {"advantage/parent/mean", "advantage/helper/mean"} <= step.keys()
        assert step["env/gateway/trained_tokens"] == step["env/gateway/sampled_tokens"] > 0
    for recorded in StepFiles(directory / "runs/rllm-training/question-1/record").episodes(0):
        rows = {each.name: len(each.tokens.segment_starts) for each in recorded.episode.trajectories}
        assert rows == {"parent": 1, "helper": 3}


def test_the_agent_s_configuration_passes_a_dry_run(example: Callable[[str], Path], rllm_here: Rllm) -> None:
    example("agents_sdk")
    (command,) = commands("agents_sdk", "rllm")
    words = [word.replace("Qwen/Qwen3-0.6B", "tiny") for word in command]
    done = rllm_here(*words, "--dry-run")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("local", marks=pytest.mark.long),
        pytest.param("tinker", marks=pytest.mark.smoke),
        pytest.param("verl", marks=pytest.mark.long),
    ],
)
def test_each_of_the_three_backends_trains(backend: str, example: Callable[[str], Path], forked_rllm: Rllm) -> None:
    directory = example("three_backends")
    (command,) = [words for words in commands("three_backends", "rllm") if f"{backend}.yaml" in words]
    checkpoints = [f"training.default_local_dir={directory}/served"] if backend == "tinker" else []
    trained(forked_rllm(*command, *SHORT, *checkpoints), directory, backend)
    (run,) = (directory / "runs" / "rllm-training").iterdir()
    assert run.name == backend
    tree = yaml.safe_load((run / "config.yaml").read_text())
    algorithm = tree["rllm"]["algorithm"]
    assert (tree["rllm"]["backend"], tree["rllm"]["rollout"]["n"]) == (backend, 8)
    assert (algorithm["adv_estimator"], algorithm["loss_fn"]) == ("rloo", "importance_sampling")
