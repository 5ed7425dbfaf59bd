"""Configurations of verl's own trainer, and of rLLM, as configurations of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from expecting import check_values

from rllm.cli.main import main
from rllm.config.packaged import packaged_values
from rllm.config.paths import leaves, split_key, value_at
from rllm.inspection.conversion import Conversion, convert_keys
from rllm_core.plugins.registry import Registry
from rllm_verl import translation
from rllm_verl.installed import config_search_path

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"
MODEL = "actor_rollout_ref.model"
OF_RLLM = {"rllm.backend": "verl"}
Convert = Callable[..., Conversion]
SCRIPT = """
#!/usr/bin/env bash
set -xeuo pipefail
export VLLM_USE_V1=1
DATA=${DATA:-data}
batch=8
MODEL=(
    actor_rollout_ref.model.path=tiny
    actor_rollout_ref.model.use_remove_padding=True
)
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=$DATA/train.jsonl \\
    data.val_files=$DATA/test.jsonl \\
    data.train_batch_size=${batch} data.max_prompt_length=64 data.max_response_length=$((batch * 4)) \\
    data.filter_overlong_prompts=True \\
    "${MODEL[@]}" \\
    actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=4 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.kl_loss_coef=0.01 \\
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \\
    actor_rollout_ref.actor.entropy_coeff=0 \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \\
    actor_rollout_ref.rollout.n=5 \\
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2 \\
    custom_reward_function.path=score.py \\
    algorithm.use_kl_in_reward=False \\
    trainer.critic_warmup=0 \\
    trainer.logger='["console","swanlab"]' \\
    trainer.experiment_name="grpo_${batch}" \\
    trainer.n_gpus_per_node=1 trainer.nnodes=1 trainer.save_freq=20 trainer.test_freq=5 trainer.total_epochs=2 \\
    trainer.default_local_dir=checkpoints "$@" 2>&1 | tee run.log
"""
SCORE = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str.strip() == ground_truth)
"""


@pytest.fixture(scope="module")
def all_plugins() -> Registry:
    return Registry.load(environ={})


@pytest.fixture(scope="module")
def record(all_plugins: Registry) -> Any:
    return all_plugins.get("backend", "verl").plugin


@pytest.fixture(scope="module")
def package_values(record: Any) -> dict[str, Any]:
    """Return verl's YAML and ours, merged into one tree."""
    return packaged_values(record, None)


@pytest.fixture(scope="module")
def of_verl() -> dict[str, Any]:
    """What verl's own YAML says."""
    (directory,) = config_search_path()
    tree = yaml.safe_load(Path(directory.removeprefix("file://"), "_generated_ppo_trainer.yaml").read_text())
    assert isinstance(tree, dict)
    return tree


@pytest.fixture(scope="module")
def convert_values(all_plugins: Registry) -> Convert:
    return lambda given: convert_keys(given, all_plugins)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A launch script and what it names, in the working directory."""
    (tmp_path / "data").mkdir()
    for name, first in (("train", 0), ("test", 50)):
        asked = [([{"role": "user", "content": f"{n}+1"}], str(n + 1)) for n in range(first, first + 20)]
        rows = [{"data_source": "sums", "prompt": prompt, "reward_model": {"ground_truth": n}} for prompt, n in asked]
        (tmp_path / "data" / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "score.py").write_text(SCORE)
    (tmp_path / "run.sh").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rllm_verl.checks.find_spec", lambda name: name)
    monkeypatch.setattr("rllm_verl.attention.find_spec", lambda name: name)
    return tmp_path


def test_translated_launch_script_passes_a_dry_run(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "convert", "run.sh"]) == 0
    shown = capsys.readouterr()
    swanlab, local_dir = "trainer.logger: swanlab", 'trainer.default_local_dir="checkpoints"'
    check_values(shown.err, swanlab, local_dir, "VLLM_USE_V1=1", "algorithm.use_kl_in_reward=false")
    (directory / "run.yaml").write_text(shown.out)
    assert main(["train", "--config", "run.yaml", "--dry-run"]) == 0, capsys.readouterr().err
    tree = yaml.safe_load(shown.out)
    assert tree["rllm"]["algorithm"] == {
        "adv_estimator": "grpo",
        "entropy": {"coeff": 0},
        "kl_beta": 0.01,
        "kl_estimator": "k3",
        "loss_fn": {"name": "ppo", "clip_ratio_c": 3.0},
    }
    assert tree["rllm"]["reward"] == [{"name": "python", "function": "score.py:compute_score"}]
    assert tree["rllm"]["trainer"]["logger"] == ["console"]
    assert tree["rllm"]["rollout"] == {"n": 5}
    assert tree["data"]["train_dataset"] == {"name": "hf", "path": "data/train.jsonl"}
    assert (tree["data"]["max_response_length"], tree["training"]) == (32, {"num_minibatches": 2})
    assert tree["actor_rollout_ref"]["rollout"]["gpu_memory_utilization"] == 0.6


@pytest.mark.long
def test_every_key_of_verl_falls_in_one_class(convert_values: Convert, package_values: dict[str, Any]) -> None:
    of_core = ("rllm", "sampling")
    values = {".".join(path): value for path, value in leaves(package_values) if path[0] not in of_core}
    found = convert_values(values)
    classes = {key: (key in found.renamed, key in found.kept, key in found.left_out) for key in values}
    assert len(values) > 500
    assert [key for key, of in classes.items() if sum(of) != 1] == []


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ({f"{ACTOR}.policy_loss.loss_mode": "gspo"}, "rllm.algorithm.loss_fn", "gspo"),
        ({f"{ACTOR}.clip_ratio_c": 5.0}, "rllm.algorithm.loss_fn", {"name": "ppo", "clip_ratio_c": 5.0}),
        ({f"{ACTOR}.use_kl_loss": True}, "rllm.algorithm.kl_beta", 0.001),
        ({f"{ACTOR}.use_kl_loss": False, f"{ACTOR}.kl_loss_coef": 0.1}, "rllm.algorithm.kl_beta", 0.0),
        ({f"{ACTOR}.clip_ratio": 0.1, f"{ACTOR}.clip_ratio_low": 0.3}, "rllm.algorithm.eps_clip", 0.3),
        ({f"{ACTOR}.clip_ratio_low": 0.3}, "rllm.algorithm.eps_clip_high", 0.2),
        ({"data.train_batch_size": 100, f"{ACTOR}.ppo_mini_batch_size": 30}, "training.num_minibatches", 4),
        ({"data.train_batch_size": 8, f"{ACTOR}.ppo_mini_batch_size": 30}, "training.num_minibatches", 1),
        ({}, "training.num_minibatches", 4),
        ({f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2}, f"{REF}.log_prob_micro_batch_size_per_gpu", 2),
        ({f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2}, f"{ACTOR}.use_dynamic_bsz", False),
        ({f"{ROLLOUT}.val_kwargs.temperature": 0.6}, "sampling.val.temperature", 0.0),
        (
            {f"{ROLLOUT}.val_kwargs.do_sample": True, f"{ROLLOUT}.val_kwargs.temperature": 0.6},
            "sampling.val.temperature",
            0.6,
        ),
        ({"data.train_files": ["a.parquet"]}, "data.train_dataset", {"name": "hf", "path": "a.parquet"}),
        (
            {"data.val_files": "b", "data.val_max_samples": 9},
            "data.val_dataset",
            {"name": "hf", "path": "b", "limit": 9},
        ),
        (
            {"reward.custom_reward_function.path": "r.py", "reward.custom_reward_function.name": "f"},
            "rllm.reward",
            [{"name": "python", "function": "r.py:f"}],
        ),
        ({"--config-name": "ppo_megatron_trainer.yaml"}, "rllm.profile", "megatron"),
        ({"algorithm.filter_groups.enable": True}, "rllm.rejection_sample.mode", "dynamic"),
        ({"trainer.logger": "console"}, "rllm.trainer.logger", ["console"]),
        ({f"{MODEL}.lora.rank": 8}, f"{MODEL}.lora_rank", 8),
        ({f"{MODEL}.override_config.dropout": 0.0}, f"{MODEL}.override_config.dropout", 0.0),
        ({f"{ACTOR}.grad_clip": 0.5}, f"{ACTOR}.optim.clip_grad", 0.5),
        ({"trainer.total_training_steps": None}, "rllm.trainer.total_batches", -1),
    ],
)
def test_keys_of_verl_become_ours(convert_values: Convert, given: dict[str, Any], key: str, value: Any) -> None:
    assert convert_values({f"{ROLLOUT}.name": "vllm", **given}).values[key] == value


@pytest.mark.parametrize(
    ("given", "key", "why"),
    [
        ({"data.train_files": ["a", "b"]}, "data.train_files", "directory"),
        ({"custom_reward_function.path": "r.py", "custom_reward_function.reward_kwargs.x": 1},
         "custom_reward_function.reward_kwargs.x", "as defaults"),
        ({f"{ROLLOUT}.mode": "sync"}, f"{ROLLOUT}.mode", "async mode"),
        ({f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1},
         f"{ACTOR}.ppo_micro_batch_size_per_gpu", "filled with tokens"),
        ({"--config-name": "my_trainer"}, "--config-name", "Convert"),
        ({"critic.optim.lr": 2e-5}, "critic.optim.lr", "critic"),
        ({f"{ACTOR}.use_token_level_loss": True}, f"{ACTOR}.use_token_level_loss", "no such key"),
        ({"trainer.critic_warmup": 0}, "trainer.critic_warmup", "verl's own trainer"),
        ({"algorithm.kl_ctrl.kl_coef": 0.001}, "algorithm.kl_ctrl.kl_coef", "use_kl_in_reward is false"),
        ({"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.01},
         "algorithm.use_kl_in_reward", "set rllm.algorithm.kl_beta=0.01"),
    ],
)  # fmt: skip
def test_keys_without_a_counterpart_say_why(convert_values: Convert, given: dict[str, Any], key: str, why: str) -> None:
    found = convert_values({f"{ROLLOUT}.name": "vllm", **given})
    assert why in found.left_out[key]
    assert key not in found.values


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ({"model.name": "m"}, f"{MODEL}.path", "m"),
        ({f"{ROLLOUT}.val_kwargs.temperature": 0.6}, "sampling.val.temperature", 0.6),
        ({f"{ACTOR}.kl_loss_coef": 0.1}, "rllm.algorithm.kl_beta", 0.1),
        ({"rllm.algorithm.estimator_map.judge": "reinforce"}, "rllm.algorithm.estimator_map.judge", "reinforce"),
        ({"rllm.agent.max_steps": 3}, "rllm.agent.max_steps", 3),
    ],
)
def test_keys_of_rllm_keep_their_names(convert_values: Convert, given: dict[str, Any], key: str, value: Any) -> None:
    found = convert_values({**OF_RLLM, **given})
    assert found.values[key] == value
    assert (found.defaults, found.notes) == ({}, ())


def test_rllm_keys_with_fixed_behavior_are_removed(convert_values: Convert) -> None:
    given = {"rllm.algorithm.use_rllm": True, "rllm.stepwise_advantage.mode": "per_step", "rllm.no.such": 1}
    assert set(convert_values({**OF_RLLM, **given}).left_out) == set(given)


def test_default_table_matches_the_installed_verl(record: Any, of_verl: dict[str, Any]) -> None:
    native = {row.rllm: row.native for row in record.shared_keys}
    for key, value in translation.DEFAULTS.items():
        assert value_at(of_verl, split_key(native.get(key, key))) == value, key
    for key, value in (
        (f"{ACTOR}.ppo_mini_batch_size", translation.PPO_MINI_BATCH_SIZE),
        (f"{ACTOR}.kl_loss_coef", translation.KL_LOSS_COEF),
        (f"{ACTOR}.clip_ratio_c", translation.CLIP_RATIO_C),
        (f"{ACTOR}.clip_ratio_high", translation.CLIP_RATIO_HIGH),
        (f"{ACTOR}.policy_loss.loss_mode", "vanilla"),
        (f"{ACTOR}.use_kl_loss", False),
        ("algorithm.use_kl_in_reward", False),
        ("algorithm.kl_ctrl.kl_coef", translation.KL_REWARD_COEF),
        (f"{ACTOR}.use_dynamic_bsz", False),
        (f"{ROLLOUT}.val_kwargs.do_sample", False),
        (f"{ROLLOUT}.val_kwargs.temperature", 0),
    ):
        assert value_at(of_verl, split_key(key)) == value, key


def test_no_other_default_of_a_shared_key_differs(
    record: Any, of_verl: dict[str, Any], package_values: dict[str, Any]
) -> None:
    differ = {
        row.rllm
        for row in record.shared_keys
        if None
        not in (
            theirs := value_at(of_verl, split_key(row.native)),
            ours := value_at(package_values, split_key(row.rllm)),
        )
        and next((core for core, native in row.spelled if native == theirs), theirs) != ours
    }
    assert differ - set(translation.DEFAULTS) == {
        "rllm.algorithm.kl_beta",  # off by use_kl_loss
        "sampling.val.temperature",  # off by do_sample
        "rllm.trainer.logger",  # programs and directories
        "rllm.trainer.project_name",
        "rllm.trainer.experiment_name",
    }
