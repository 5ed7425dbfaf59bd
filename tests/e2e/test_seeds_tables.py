"""A run has the length, validations, checkpoints and files that its keys specify.

`test_every_key.py` shows of each key that code reads it, or that it is rejected. `tests/test_config_reference.py`
compares the defaults.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError

ONE_TOKEN = {"data.max_response_length": 1}


@pytest.mark.long
def test_run_length_is_in_epochs_or_steps(train: Any) -> None:
    epochs = train("sum", {"rllm.trainer.total_epochs": 2, **ONE_TOKEN})
    assert [step.epoch for step in epochs.steps] == [0, 0, 1, 1], "four tasks, two at a time"
    assert len(train("sum", {"rllm.trainer.total_batches": 3, **ONE_TOKEN}).steps) == 3


def validations(run: Any) -> list[int]:
    return [line["step"] + 1 for line in run.history if "val/sum/pass@1" in line]


@pytest.mark.long
def test_validations_follow_test_freq_and_the_end(train: Any) -> None:
    five = {"rllm.trainer.total_batches": 5, **ONE_TOKEN}
    assert validations(train("sum", {**five, "rllm.trainer.test_freq": 2})) == [2, 4, 5]
    assert validations(train("sum", {**five, "rllm.trainer.val_before_train": True})) == [0, 5]
    only = train("sum", {**five, "rllm.trainer.val_only": True})
    assert (validations(only), only.steps) == ([0], [])
    assert not (only.directory / "checkpoints").exists()


def test_checkpoints_follow_save_freq_and_the_end(train: Any) -> None:
    run = train("sum", {"rllm.trainer.total_batches": 5, "rllm.trainer.save_freq": 2})
    names = sorted(path.name for path in (run.directory / "checkpoints").glob("step_*"))
    assert names == ["step_000002", "step_000004", "step_000005"]


def test_advantage_can_be_divided_by_number_of_steps(train: Any) -> None:
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


@pytest.mark.long
def test_thinking_can_be_disabled_in_chat_template(train: Any, thinking_model: Path) -> None:
    from rllm_local.tiny import build_tokenizer

    def prompt(**settings: bool) -> str:
        model = {"model.name": str(thinking_model), "rllm.env.env_args.prompt": "number", **ONE_TOKEN}
        run = train("sum", model | {f"rllm.{name}": value for name, value in settings.items()})
        return str(build_tokenizer().decode(run.episodes[0].trajectories[0].steps[0].prompt_ids))

    assert prompt() == "number?"
    assert prompt(disable_thinking=True) == "number"
    with expect_error(ConfigError, "no-thinking-switch", "`enable_thinking`"):
        train("sum", {"rllm.disable_thinking": True})


@pytest.mark.long
def test_episodes_are_saved_in_any_directory(train: Any, tmp_path: Path) -> None:
    assert not (train("sum").directory / "episodes").exists()
    run = train("sum", {"rllm.episode_logging.log_episodes": True})
    (file,) = (run.directory / "episodes").iterdir()
    assert [json.loads(line)["id"] for line in gzip.decompress(file.read_bytes()).splitlines()] == [
        episode.id for episode in run.episodes
    ]
    name = "logs/${rllm.trainer.project_name}/${rllm.trainer.experiment_name}"
    train("sum", {"rllm.episode_logging.log_episodes": True, "rllm.episode_logging.episode_log_dir": name})
    written = {path.name for path in (tmp_path / "logs/rllm-training/default").iterdir()}
    assert written == {"run.json", "step_000000.jsonl.gz"}
