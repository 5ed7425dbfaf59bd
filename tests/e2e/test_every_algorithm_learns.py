"""Every estimator and every loss raises the reward: sums of 0 and 1, one token each, learned from random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rllm.config.layers import Tier, layer_from_keys
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.stage import StagePlugin
from rllm_core.contracts.train_step import TrainStep
from rllm_core.plugins.registry import Registry

from .conftest import plan_of

INSTALLED = Registry.load()
FIRST_PARTY = ("rllm", "rllm-core", "rllm-estimators")
STEPS = 40
SUMS: dict[str, Any] = {
    "rllm.env.name": "sum",
    "rllm.env.env_args.largest": 1,
    "rllm.rollout.n": 16,
    "rllm.rollout.n_val": 1,
    "rllm.trainer.total_batches": STEPS,
    "rllm.trainer.logger": [],
    "rllm.trainer.val_before_train": False,
    "rllm.trainer.test_freq": -1,
    "rllm.trainer.save_freq": -1,
    "rllm.trainer.output_dir": "runs",
    "data.train_batch_size": 4,
}
NEEDED: dict[str, dict[str, Any]] = {
    "mix": {"rllm.algorithm.adv_estimator": {"name": "mix", "parts": ["grpo", "rloo"]}},
    # Its gradient is proportional to beta, and groups without a solution only pull towards the reference model.
    "a2po": {
        "rllm.algorithm.loss_fn": {"name": "a2po", "beta": 0.1},
        "rllm.rejection_sample.enable": True,
        "rllm.rejection_sample.mode": "group",
    },
    # It follows all samples, so wrong ones must be removed.
    "cross_entropy": {"rllm.pipeline.insert": [{"stage": "only_solved", "after": "check_rewards"}]},
}
"""Settings that an algorithm needs to learn."""

FOR_THE_BEST = "grpo_passk"
"""An estimator that follows a group's only success and ignores two. It raises pass@16, not the mean reward."""

ONE_OF_EACH_FAMILY = (
    "grpo",  # baselines of the group; its loss is ppo, which clips the ratio
    "reinforce_plus_plus",  # an advantage for every token
    "cross_entropy",  # losses that do not look at the ratio
    "dynamic",  # rejection
)
"""Algorithms of `make release`. The others learn every night. `gae` learns in `rllm_local`."""

Learn = Callable[..., list[float]]


def _marked(names: list[str]) -> list[Any]:
    return [
        pytest.param(name, marks=pytest.mark.long if name in ONE_OF_EACH_FAMILY else pytest.mark.nightly)
        for name in names
        if name != FOR_THE_BEST
    ]


def _names(kind: str) -> list[Any]:
    return _marked([entry.name for entry in INSTALLED.all(kind) if entry.distribution in FIRST_PARTY])


def _only_solved() -> StagePlugin[Any]:
    def make(context: object, params: NoParams) -> Any:
        async def stage(step: TrainStep) -> None:
            for group in step.trajectory_groups:
                group.trajectories = [trajectory for trajectory in group.trajectories if trajectory.reward]
                group.metadata = []
            step.trajectory_groups = [group for group in step.trajectory_groups if group.trajectories]
            if not step.trajectory_groups:
                step.skip("nothing_solved")

        return stage

    groups = frozenset({"trajectory_groups"})
    return StagePlugin(name="only_solved", summary="For tests.", load=lambda: make, reads=groups, writes=groups)


@pytest.fixture
def learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carry_out: Any) -> Learn:
    """Train with these settings, and return a metric of every step."""
    monkeypatch.chdir(tmp_path)

    def run(settings: dict[str, Any], metric: str = "reward/agent/mean") -> list[float]:
        registry = Registry.load()
        registry.add(_only_solved())
        trained = carry_out(plan_of(settings, registry, [layer_from_keys(SUMS, "before", Tier.SAVED)]))
        return [step.metrics[metric] for step in trained.steps]

    return run


def check_learned(rewards: list[float]) -> None:
    """Check a rise from chance to at least two of the four sums. Their order and time depend on the seed."""
    assert np.mean(rewards[:2]) < 0.2
    assert np.mean(rewards[-5:]) > 0.4


@pytest.mark.parametrize("name", _names("estimator"))
def test_an_estimator_raises_the_reward(name: str, learn: Learn) -> None:
    check_learned(learn({"rllm.algorithm.adv_estimator": name, **NEEDED.get(name, {})}))


@pytest.mark.nightly
def test_best_of_group_estimator_raises_pass_at_k(learn: Learn) -> None:
    unsolved = learn({"rllm.algorithm.adv_estimator": FOR_THE_BEST}, "batch/solve_none")
    assert np.mean(unsolved[:2]) > 0.6
    assert np.mean(unsolved[-5:]) < 0.4


@pytest.mark.parametrize("name", _names("loss"))
def test_a_loss_raises_the_reward(name: str, learn: Learn) -> None:
    check_learned(learn({"rllm.algorithm.loss_fn": name, **NEEDED.get(name, {})}))


@pytest.mark.parametrize("mode", _marked(["episode", "group", "dynamic"]))
def test_a_rejection_mode_lets_the_reward_rise(mode: str, learn: Learn) -> None:
    check_learned(learn({"rllm.rejection_sample.enable": True, "rllm.rejection_sample.mode": mode}))
