"""Short runs with a critic, a reference, and probabilities of the whole vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rllm.cli.main import main

SHORT = ("rllm.trainer.val_before_train=false", "rllm.trainer.test_freq=-1", "rllm.trainer.save_freq=-1")


@pytest.fixture
def in_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, and runs without a report, which takes more time than their steps."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLLM_BLOCK_PLUGINS", "rllm-view")
    return tmp_path


def train(directory: Path, name: str, *words: str) -> list[dict[str, Any]]:
    """The metrics of the steps of a run."""
    assert main(["train", "guess", f"rllm.trainer.experiment_name={name}", *SHORT, *words]) == 0
    lines = (directory / "runs" / "rllm-training" / name / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "batch/episodes" in line]


@pytest.mark.nightly
def test_gae_raises_reward_and_critic_explains_variance(in_directory: Path) -> None:
    steps = train(in_directory, "gae", "--estimator", "gae", "rllm.trainer.total_batches=40", "rllm.rollout.n=8")
    means = [step["reward/agent/mean"] for step in steps]
    assert sum(means[:3]) / 3 < 0.12
    assert sum(means[-5:]) / 5 > 0.2
    assert sum(step["critic/explained_variance"] for step in steps[-10:]) / 10 > 0.05


@pytest.mark.smoke
@pytest.mark.parametrize("estimator", ["gae", "otb"])
def test_estimators_with_model_columns_update_the_policy(estimator: str, in_directory: Path) -> None:
    few = ("rllm.trainer.total_batches=2", "rllm.rollout.n=4", "rllm.algorithm.kl_beta=0.1")
    steps = train(in_directory, "run", "--estimator", estimator, *few)
    assert all(step["advantage/agent/std"] > 0 and step["actor/grad_norm"] > 0 for step in steps)
    assert all(step["actor/kl_ref"] > 0 for step in steps)
    if estimator == "gae":
        assert [step["critic/value_mean"] != 0 for step in steps] == [False, True]
