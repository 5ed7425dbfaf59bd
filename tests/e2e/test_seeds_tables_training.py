"""rLLM's tables of keys, second part: training loop, algorithm, stepwise advantages. Each row's effect is seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expecting import expect_error

from rllm.planning.unused_keys import core_keys
from rllm_core.errors import ConfigError
from rllm_core.schema.run_config import RunConfig

TABLE: dict[str, Any] = {
    "rllm.trainer.total_epochs": 10,
    "rllm.trainer.total_batches": -1,
    "rllm.trainer.logger": ["console"],
    "rllm.trainer.project_name": "rllm-training",
    "rllm.trainer.experiment_name": "default",
    "rllm.trainer.test_freq": 5,
    "rllm.trainer.save_freq": 20,
    "rllm.trainer.val_before_train": True,
    "rllm.trainer.val_only": False,
    "rllm.algorithm.adv_estimator": "grpo",
    "rllm.algorithm.norm_adv_by_std_in_grpo": True,
    "rllm.algorithm.loss_fn": None,
    "rllm.stepwise_advantage.enable": False,
    "rllm.stepwise_advantage.mode": "broadcast",
    "rllm.stepwise_advantage.normalize_by_steps": False,
}
"""Name and default of each row."""
ONE_TOKEN = {"data.max_response_length": 1}
SHOWN: set[str] = set()


def shows(*names: str) -> Callable[[Any], Any]:
    """What a test is about."""
    SHOWN.update(names)
    return lambda test: test


def test_every_row_is_shown_to_have_an_effect_or_to_be_refused() -> None:
    assert set(TABLE) == SHOWN


def test_names_and_defaults_are_those_of_the_table() -> None:
    defaults = {key.dotted: key.default for key in core_keys(RunConfig())}
    assert {name: defaults[name] for name in TABLE} == TABLE


@pytest.mark.parametrize("name", ["test_freq", "save_freq"])
def test_frequencies_count_steps_and_say_so(name: str) -> None:
    """Decision 1; the table says epochs."""
    key = next(key for key in core_keys(RunConfig()) if key.path[-1] == name)
    assert key.field.description.startswith("Training steps between")


# Training loop


@shows("rllm.trainer.total_epochs", "rllm.trainer.total_batches")
def test_the_length_of_a_run_is_counted_in_epochs_or_in_steps(train: Any) -> None:
    epochs = train("sum", {"rllm.trainer.total_epochs": 3})
    assert [step.epoch for step in epochs.steps] == [0, 0, 1, 1, 2, 2], "four tasks, two at a time"
    assert len(train("sum", {"rllm.trainer.total_batches": 3}).steps) == 3


@shows("rllm.trainer.logger")
def test_metrics_go_to_the_trackers_that_are_named(train: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = train("sum", {"rllm.trainer.logger": ["tensorboard"]})
    assert capsys.readouterr().out == ""
    assert len(list((run.directory / "tensorboard").iterdir())) == 1
    run = train("sum", {"rllm.trainer.logger": ["console"]})
    assert capsys.readouterr().out.startswith("step 1/1  solved")
    assert not (run.directory / "tensorboard").exists()


@shows("rllm.trainer.project_name", "rllm.trainer.experiment_name")
def test_project_and_experiment_name_the_folder_of_the_run(train: Any, tmp_path: Path) -> None:
    train("sum", {"rllm.trainer.project_name": "arithmetic", "rllm.trainer.experiment_name": "first"})
    assert (tmp_path / "runs" / "arithmetic" / "first" / "metrics.jsonl").exists()


def validations(run: Any) -> list[int]:
    return [line["step"] + 1 for line in run.history if "val/sum/pass@1" in line]


@shows("rllm.trainer.test_freq", "rllm.trainer.val_before_train", "rllm.trainer.val_only")
def test_validations_come_when_they_are_asked_for_and_at_the_end(train: Any) -> None:
    five = {"rllm.trainer.total_batches": 5, **ONE_TOKEN}
    assert validations(train("sum", {**five, "rllm.trainer.test_freq": 2})) == [2, 4, 5]
    assert validations(train("sum", {**five, "rllm.trainer.val_before_train": True})) == [0, 5]
    only = train("sum", {**five, "rllm.trainer.val_only": True})
    assert (validations(only), only.steps) == ([0], [])
    assert not (only.directory / "checkpoints").exists()


@shows("rllm.trainer.save_freq")
def test_checkpoints_come_when_they_are_asked_for_and_at_the_end(train: Any) -> None:
    run = train("sum", {"rllm.trainer.total_batches": 5, "rllm.trainer.save_freq": 2})
    names = sorted(path.name for path in (run.directory / "checkpoints").glob("step_*"))
    assert names == ["step_000002", "step_000004", "step_000005"]


# Algorithm


def rewards_and_advantages(run: Any) -> tuple[np.ndarray, np.ndarray]:
    """Of the groups of the last step: (group, trajectory)."""
    step = run.steps[-1]
    groups = step.trajectory_groups
    assert step.batch.loss_mask.sum() == sum(len(group.trajectories) for group in groups), "one token each"
    rewards = np.array([[trajectory.reward for trajectory in group.trajectories] for group in groups])
    return rewards, step.batch.advantages[step.batch.loss_mask].reshape(rewards.shape)


@shows("rllm.algorithm.adv_estimator", "rllm.algorithm.norm_adv_by_std_in_grpo")
def test_the_estimator_chosen_by_name_makes_the_advantages(train: Any) -> None:
    lucky = {"rllm.rollout.n": 4, **ONE_TOKEN}
    rewards, advantages = rewards_and_advantages(train("lucky", lucky))
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    assert np.abs(centred).max() > 0
    np.testing.assert_allclose(advantages, centred / rewards.std(axis=1, keepdims=True), atol=1e-4)

    _, advantages = rewards_and_advantages(train("lucky", {**lucky, "rllm.algorithm.norm_adv_by_std_in_grpo": False}))
    np.testing.assert_allclose(advantages, centred, atol=1e-6)

    _, advantages = rewards_and_advantages(train("lucky", {**lucky, "rllm.algorithm.adv_estimator": "reinforce"}))
    np.testing.assert_allclose(advantages, rewards)


@shows("rllm.algorithm.loss_fn")
def test_the_loss_chosen_by_name_is_minimised(train: Any) -> None:
    estimator = {"rllm.algorithm.adv_estimator": "reinforce", **ONE_TOKEN}
    run = train("lucky", {**estimator, "rllm.algorithm.loss_fn": "importance_sampling"})
    rewards, _ = rewards_and_advantages(run)
    assert run.metrics["actor/loss"] == pytest.approx(-rewards.mean(), abs=1e-5), "every ratio is 1"
    run = train("lucky", {**estimator, "rllm.algorithm.loss_fn": "reinforce"})
    batch = run.steps[0].batch
    likelihood = batch.sampling_logprobs[batch.loss_mask] * batch.advantages[batch.loss_mask]
    assert run.metrics["actor/loss"] == pytest.approx(-likelihood.mean(), abs=1e-4)


# Stepwise advantages


@shows("rllm.stepwise_advantage.enable", "rllm.stepwise_advantage.normalize_by_steps")
def test_an_advantage_can_be_divided_by_the_number_of_steps(train: Any) -> None:
    paying = {"rllm.algorithm.adv_estimator": "reinforce", **ONE_TOKEN}

    def advantages(**settings: bool) -> set[float]:
        run = train("paying", paying | {f"rllm.stepwise_advantage.{name}": value for name, value in settings.items()})
        batch = run.steps[0].batch
        return {round(float(value), 4) for value in batch.advantages[batch.loss_mask]}

    assert advantages() == {7.0}
    assert advantages(enable=True, normalize_by_steps=True) == {round(7 / 3, 4)}
    key = "rllm.stepwise_advantage.normalize_by_steps"
    with expect_error(ConfigError, "unused-key", key, "rllm.stepwise_advantage.enable is false"):
        advantages(normalize_by_steps=True)


@shows("rllm.stepwise_advantage.mode")
def test_advantages_per_step_are_refused_with_what_to_do_instead(train: Any) -> None:
    with expect_error(ConfigError, "unused-key", "rllm.stepwise_advantage.mode", "`step`", "`token`"):
        train("sum", {"rllm.stepwise_advantage.enable": True, "rllm.stepwise_advantage.mode": "per_step"})
