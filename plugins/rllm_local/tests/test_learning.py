"""Short runs that learn: a critic raises the reward, and a KL term limits the change of the policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rllm.cli.main import main

pytestmark = pytest.mark.long

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


def reward(steps: list[dict[str, Any]]) -> float:
    return sum(step["reward/agent/mean"] for step in steps) / len(steps)


@pytest.mark.long
def test_gae_lifts_the_reward_and_its_critic_sees_some_of_it_coming(in_directory: Path) -> None:
    steps = train(in_directory, "gae", "--estimator", "gae", "rllm.trainer.total_batches=40", "rllm.rollout.n=8")
    assert reward(steps[:3]) < 0.12
    assert reward(steps[-5:]) > 0.2
    assert sum(step["critic/explained_variance"] for step in steps[-10:]) / 10 > 0.05


def test_otb_is_given_probabilities_of_the_whole_vocabulary_and_updates_the_policy(in_directory: Path) -> None:
    steps = train(in_directory, "otb", "--estimator", "otb", "rllm.trainer.total_batches=2", "rllm.rollout.n=4")
    assert all(step["advantage/agent/std"] > 0 and step["actor/grad_norm"] > 0 for step in steps)


@pytest.mark.long
def test_a_large_kl_beta_keeps_the_policy_near_the_reference(in_directory: Path) -> None:
    few = ("rllm.trainer.total_batches=12", "rllm.rollout.n=8")
    free = train(in_directory, "free", "rllm.algorithm.kl_beta=1e-6", *few)
    held = train(in_directory, "held", "rllm.algorithm.kl_beta=3", *few)
    assert free[-1]["actor/kl_ref"] > 0.3
    assert held[-1]["actor/kl_ref"] < 0.05
    assert reward(held[-5:]) < reward(free[-5:])


def test_corrected_rollouts_learn_as_uncorrected_ones_do_where_sampler_and_trainer_agree(in_directory: Path) -> None:
    few = ("rllm.trainer.total_batches=1", "rllm.rollout.n=4")
    plain = train(in_directory, "plain", *few)
    correction = "rllm.algorithm.rollout_correction.tis_mode=sequence"
    corrected = train(in_directory, "corrected", correction, *few)
    assert all(step["actor/rollout_weight"] == pytest.approx(1, abs=1e-4) for step in corrected)
    assert all(step["actor/rollout_masked"] == 0 for step in corrected)
    assert reward(corrected) == pytest.approx(reward(plain), abs=0.1)
