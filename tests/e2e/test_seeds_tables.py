"""rLLM's tables of keys: rllm has the same names and defaults, and a run has the length that its keys say.

`test_every_key.py` shows of each key that code reads it, or that it is rejected.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error

from rllm.planning.unused_keys import core_keys
from rllm_core.errors import ConfigError
from rllm_core.rollout.options import AgentWorkflowParams
from rllm_core.schema.run_config import RunConfig

TABLE: dict[str, Any] = {
    "rllm.agent.name": "math_agent",
    "rllm.agent.max_steps": 20,
    "rllm.agent.trajectory_timeout": None,
    "rllm.agent.overlong_filter": False,
    "rllm.agent.agent_args": {},
    "rllm.agent.engine_args": {},
    "rllm.env.name": "custom",
    "rllm.env.env_args": {},
    "rllm.workflow.use_workflow": False,
    "rllm.workflow.name": "single_turn_workflow",
    "rllm.workflow.workflow_args.agent_cls": None,
    "rllm.workflow.workflow_args.agent_args": {},
    "rllm.workflow.workflow_args.env_cls": None,
    "rllm.workflow.workflow_args.env_args": {},
    "rllm.workflow.workflow_args.timeout": 1e6,
    "rllm.workflow.workflow_args.gamma": 0.0,
    "rllm.workflow.workflow_args.reward_bonus_coeff": 0.0,
    "rllm.workflow.n_parallel_tasks": 256,
    "rllm.workflow.retry_limit": 3,
    "rllm.workflow.raise_on_error": True,
    "rllm.rollout.n": 8,
    "rllm.rollout.n_val": 1,
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
    "rllm.disable_thinking": False,
    "rllm.accumulate_reasoning": False,
    "rllm.mask_truncated_samples": False,
    "rllm.filter_token_mismatch": True,
    "rllm.compact_filtering.enable": False,
    "rllm.compact_filtering.mask_max_prompt_length_exceeded": True,
    "rllm.compact_filtering.mask_max_response_length_exceeded": True,
    "rllm.compact_filtering.mask_env_done": False,
    "rllm.compact_filtering.mask_max_turns_exceeded": True,
    "rllm.compact_filtering.mask_timeout": True,
    "rllm.compact_filtering.mask_unknown": False,
    "rllm.compact_filtering.mask_error": True,
    "rllm.rejection_sample.enable": False,
    "rllm.rejection_sample.multiplier": 1,
    "rllm.rejection_sample.min_partial_solve_tasks": 1,
    "rllm.rejection_sample.min_trajs_per_group": 2,
    "rllm.sdk.store.path": "~/.rllm/traces.db",
    "rllm.sdk.processing.groupby_key": None,
    "rllm.sdk.processing.traj_name_key": None,
    "rllm.sdk.proxy.host": "127.0.0.1",
    "rllm.sdk.proxy.port": 4000,
    "rllm.sdk.proxy.mode": "subprocess",
    "rllm.sdk.proxy.admin_token": "my-shared-secret",
    "rllm.episode_logging.log_episodes": False,
    "rllm.episode_logging.episode_log_dir": "logs/${rllm.trainer.project_name}/${rllm.trainer.experiment_name}",
}
"""Return the name and default of each row."""
OTHER_DEFAULTS = dict.fromkeys(
    ("rllm.sdk.proxy.admin_token", "rllm.episode_logging.episode_log_dir", "rllm.sdk.store.path")
)
"""Decision 14: no public secret, and episodes and calls belong to the directory of their run."""
ONE_TOKEN = {"data.max_response_length": 1}


def test_names_and_defaults_are_those_of_the_tables() -> None:
    defaults = {key.dotted: key.default for key in core_keys(RunConfig())}
    options = AgentWorkflowParams().model_dump()
    defaults |= {f"rllm.workflow.workflow_args.{name}": value for name, value in options.items()}
    assert {name: defaults[name] for name in TABLE} == TABLE | OTHER_DEFAULTS


@pytest.mark.long
def test_the_length_of_a_run_is_counted_in_epochs_or_in_steps(train: Any) -> None:
    epochs = train("sum", {"rllm.trainer.total_epochs": 3})
    assert [step.epoch for step in epochs.steps] == [0, 0, 1, 1, 2, 2], "four tasks, two at a time"
    assert len(train("sum", {"rllm.trainer.total_batches": 3}).steps) == 3


def validations(run: Any) -> list[int]:
    return [line["step"] + 1 for line in run.history if "val/sum/pass@1" in line]


@pytest.mark.long
def test_validations_come_when_they_are_asked_for_and_at_the_end(train: Any) -> None:
    five = {"rllm.trainer.total_batches": 5, **ONE_TOKEN}
    assert validations(train("sum", {**five, "rllm.trainer.test_freq": 2})) == [2, 4, 5]
    assert validations(train("sum", {**five, "rllm.trainer.val_before_train": True})) == [0, 5]
    only = train("sum", {**five, "rllm.trainer.val_only": True})
    assert (validations(only), only.steps) == ([0], [])
    assert not (only.directory / "checkpoints").exists()


def test_checkpoints_come_when_they_are_asked_for_and_at_the_end(train: Any) -> None:
    run = train("sum", {"rllm.trainer.total_batches": 5, "rllm.trainer.save_freq": 2})
    names = sorted(path.name for path in (run.directory / "checkpoints").glob("step_*"))
    assert names == ["step_000002", "step_000004", "step_000005"]


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


@pytest.mark.long
def test_thinking_can_be_switched_off_in_the_chat_template(train: Any, thinking_model: Path) -> None:
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
def test_episodes_are_kept_on_disk_in_the_run_s_directory_or_another(train: Any, tmp_path: Path) -> None:
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
