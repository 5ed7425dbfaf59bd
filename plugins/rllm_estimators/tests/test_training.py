"""Every estimator by its name in a run that updates a model."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from written_distribution import write_distribution

from rllm.cli.main import main

FEW = (
    "rllm.trainer.total_batches=2",
    "rllm.trainer.val_before_train=false",
    "rllm.trainer.test_freq=-1",
    "rllm.rollout.n=4",
    "data.train_batch_size=32",
)

PARTS = """
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.stage import StagePlugin
from rllm_core.plugins import hookimpl

def load():
    def make(context, params):
        async def stage(step):
            for group in step.trajectory_groups:
                for trajectory in group.trajectories:
                    said = trajectory.steps[-1].text
                    parts = {"correct": trajectory.reward, "digit": float(said.isdigit())}
                    trajectory.info["reward_components"] = parts
        return stage
    return make

@hookimpl
def rllm_stages():
    names = frozenset({"trajectory_groups"})
    yield StagePlugin(name="parts", summary="Parts.", load=load, reads=names, writes=names)
"""

Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return lambda *words: main(["train", "sum", *FEW, *words])


def check_trained(directory: Path) -> None:
    lines = (directory / "runs" / "rllm-training" / "sum-1" / "metrics.jsonl").read_text().splitlines()
    steps = [step for step in map(json.loads, lines) if "batch/episodes" in step]
    assert len(steps) == 2
    assert all(math.isfinite(step["actor/loss"]) for step in steps)
    # A model of random weights may solve nothing in one of the two.
    assert any(step["advantage/agent/std"] > 0 and step["actor/grad_norm"] > 0 for step in steps)


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed stage that says what the rewards consist of."""
    site = tmp_path / "site"
    write_distribution(site, "reward-parts", PARTS)
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()


@pytest.mark.smoke
@pytest.mark.usefixtures("parts")
def test_gdpo_trains_on_components_from_a_stage(run: Run, tmp_path: Path) -> None:
    chosen = "rllm.algorithm.adv_estimator={name: gdpo, dialect: nemo, weights: {digit: 0.5}}"
    assert run(chosen, "rllm.pipeline.insert=[{stage: parts, after: check_rewards}]") == 0
    check_trained(tmp_path)


@pytest.mark.parametrize(
    ("estimator", "status"),
    [
        ("{name: reinforce_plus_plus, use_step_rewards: true}", 0),
        ("{name: reinforce_plus_plus, use_step_rewards: false}", 2),
        ("reinforce_plus_plus", 2),
        ("step_reinforce", 0),
    ],
)
def test_step_shaping_without_use_step_rewards_is_rejected(
    run: Run, capfd: pytest.CaptureFixture[str], estimator: str, status: int
) -> None:
    chosen = (f"rllm.algorithm.adv_estimator={estimator}", "rllm.workflow.workflow_args.gamma=0.5")
    assert run(*chosen, "--dry-run") == status
    said = capfd.readouterr().err
    refused = "estimator reinforce_plus_plus reads only trajectory rewards" in said
    assert refused == bool(status)
    assert ("set its option use_step_rewards" in said) == refused
