"""The table of shared keys, row by row and level by level, in what the installed verl really ships."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from rllm.config.compose import Composed
from rllm.config.layers import layer_from_keys
from rllm_verl.keys import SHARED_KEYS

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
ALGORITHM = "rllm.algorithm"
CORRECTION = "algorithm.rollout_correction"
ESTIMATORS = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}


class Row(NamedTuple):
    """A shared key with a value a user may give; `native` ones are written as verl writes them."""

    native: str
    rllm: str
    value: Any
    default: Any
    """Default value of the core's key."""
    spelled: dict[Any, Any] = {}  # noqa: RUF012  (core's spelling -> verl's, where they differ)
    deprecated: bool = True

    def in_verl(self, value: Any) -> Any:
        return self.spelled.get(value, value) if not isinstance(value, list) else value


TABLE = (
    Row("algorithm.adv_estimator", f"{ALGORITHM}.adv_estimator", "rloo", "grpo"),
    Row("algorithm.norm_adv_by_std_in_grpo", f"{ALGORITHM}.norm_adv_by_std_in_grpo", False, True),
    Row("algorithm.rollout_correction.bypass_mode", f"{ALGORITHM}.rollout_correction.bypass_mode", True, False),
    Row(f"{CORRECTION}.rollout_is", f"rllm.{CORRECTION}.tis_mode", "token", None),
    Row(f"{CORRECTION}.rollout_is_threshold", f"rllm.{CORRECTION}.tis_cap", 3.0, 2.0),
    Row(f"{CORRECTION}.rollout_is_batch_normalize", f"rllm.{CORRECTION}.tis_batch_normalize", True, False),
    Row(f"{ACTOR}.kl_loss_coef", f"{ALGORITHM}.kl_beta", 0.01, 0.0),
    Row(f"{ACTOR}.policy_loss.loss_mode", f"{ALGORITHM}.loss_fn", "gspo", "ppo", {"ppo": "vanilla"}),
    Row(f"{ACTOR}.loss_agg_mode", f"{ALGORITHM}.loss_agg_mode", "seq-mean-token-sum", "token-mean"),
    Row(f"{ACTOR}.clip_ratio_high", f"{ALGORITHM}.eps_clip_high", 0.28, None),
    Row(f"{ROLLOUT}.n", "rllm.rollout.n", 4, 8),
    Row(f"{ROLLOUT}.val_kwargs.n", "rllm.rollout.n_val", 4, 1),
    Row("trainer.total_epochs", "rllm.trainer.total_epochs", 2, 10),
    Row("trainer.total_training_steps", "rllm.trainer.total_batches", 5, -1, {-1: None}),
    Row("trainer.logger", "rllm.trainer.logger", ["tensorboard"], ["console"]),
    Row("trainer.project_name", "rllm.trainer.project_name", "mine", "rllm-training"),
    Row("trainer.experiment_name", "rllm.trainer.experiment_name", "one", "default"),
    Row("trainer.test_freq", "rllm.trainer.test_freq", 2, 5),
    Row("trainer.save_freq", "rllm.trainer.save_freq", 2, 20),
    Row("trainer.val_before_train", "rllm.trainer.val_before_train", False, True),
    Row("trainer.val_only", "rllm.trainer.val_only", True, False),
    Row(f"{ACTOR}.clip_ratio", f"{ALGORITHM}.eps_clip", 0.1, 0.2),
    Row(f"{ACTOR}.clip_ratio_low", f"{ALGORITHM}.eps_clip", 0.1, 0.2),
    Row(f"{ACTOR}.entropy_coeff", f"{ALGORITHM}.entropy.coeff", 0.01, 0.0),
    Row(f"{ACTOR}.kl_loss_type", f"{ALGORITHM}.kl_estimator", "k1", "k3", ESTIMATORS),
    Row(f"{ACTOR}.optim.lr_scheduler_type", f"{ALGORITHM}.lr_schedule", "cosine", "constant", {}, False),
    Row(f"{ACTOR}.optim.lr_warmup_steps_ratio", f"{ALGORITHM}.warmup_steps_ratio", 0.1, 0.0, {}, False),
    Row(f"{ROLLOUT}.temperature", "sampling.train.temperature", 0.7, 1.0),
    Row(f"{ROLLOUT}.top_p", "sampling.train.top_p", 0.7, 1.0),
    Row(f"{ROLLOUT}.top_k", "sampling.train.top_k", 7, -1),
    Row(f"{ROLLOUT}.val_kwargs.temperature", "sampling.val.temperature", 0.7, 1.0),
    Row(f"{ROLLOUT}.val_kwargs.top_p", "sampling.val.top_p", 0.7, 1.0),
    Row(f"{ROLLOUT}.val_kwargs.top_k", "sampling.val.top_k", 7, -1),
)
LOW = next(row for row in TABLE if row.native == f"{ACTOR}.clip_ratio_low")
ROWS = tuple(row for row in TABLE if row is not LOW)
"""Rows that can be set at once: two rows have the key `eps_clip` of the core."""
FALLS_BACK = f"{ACTOR}.clip_ratio_high"
"""Its core key is null by default and then means another one."""


def word(key: str, value: Any) -> str:
    return f"{key}={json.dumps(value) if isinstance(value, list | bool) or value is None else value}"


def said_of(row: Row, composed: Composed) -> list[str]:
    return [line for line in composed.warnings if f"`{row.native}`" in line]


def both(composed: Composed, row: Row) -> tuple[Any, Any]:
    return composed.value(row.rllm), composed.value(row.native)


def both_values(row: Row, value: Any) -> tuple[Any, Any]:
    return value, row.in_verl(value)


def in_verl(row: Row) -> str:
    return word(row.native, row.in_verl(row.value))


def test_table_equals_the_table_of_the_backend() -> None:
    assert [(row.native, row.rllm) for row in SHARED_KEYS] == [(row.native, row.rllm) for row in TABLE]


def test_level_1_core_override_is_mirrored_silently(run: Any) -> None:
    composed = run(*dict.fromkeys(word(row.rllm, row.value) for row in TABLE))
    assert composed.warnings == ()
    for row in TABLE:
        assert both(composed, row) == both_values(row, row.value)


def test_level_2_verl_override_applies_and_is_deprecated(run: Any) -> None:
    composed, of_low = run(*map(in_verl, ROWS)), run(in_verl(LOW))
    for row in TABLE:
        found = of_low if row is LOW else composed
        assert both(found, row) == both_values(row, row.value)
        said = [f"which is deprecated: set `{row.rllm}` instead."] if row.deprecated else []
        assert [line.rpartition(", ")[2] for line in said_of(row, found)] == said


def test_levels_3_and_4_packaged_values_agree_silently(run: Any) -> None:
    composed = run()
    assert composed.warnings == ()
    for row in TABLE:
        assert composed.value(row.rllm) == row.default
        assert composed.value(row.native) == (0.2 if row.native == FALLS_BACK else row.in_verl(row.default))


def test_level_4_core_null_takes_verl_default(run: Any) -> None:
    composed = run()
    assert composed.origins[f"{ALGORITHM}.loss_fn"] == f"backend verl, by {ACTOR}.policy_loss.loss_mode"
    assert composed.origins[f"{ALGORITHM}.rollout_correction.bypass_mode"] == "backend verl"


@pytest.mark.parametrize(
    ("ours", "native"), [("ppo", "vanilla"), ("gspo", "gspo"), ("reinforce", "gpg"), ("gmpo", "geo_mean")]
)
def test_verls_loss_names_are_ours(ours: str, native: str) -> None:
    (row,) = (row for row in SHARED_KEYS if row.rllm == f"{ALGORITHM}.loss_fn")
    assert dict(row.spelled).get(ours, ours) == native


def test_length_and_choices_have_other_forms_in_verl(run: Any) -> None:
    estimator = "rllm.algorithm.adv_estimator={name: rllm-core/grpo, norm_adv_by_std_in_grpo: false}"
    composed = run("rllm.trainer.total_batches=-1", "trainer.total_training_steps=5", estimator)
    assert composed.value("trainer.total_training_steps") is None
    assert composed.value("algorithm.adv_estimator") == "grpo"
    composed = run(
        layer_from_keys({"rllm.trainer.total_epochs": 3}, "my.yaml"),
        "trainer.total_training_steps=5",
        f"{ACTOR}.policy_loss.loss_mode=ppo",
    )
    assert composed.value("rllm.trainer.total_batches") == 5
    assert composed.value("trainer.total_epochs") == 10
    assert composed.value(f"{ALGORITHM}.loss_fn") == "ppo"
    assert run("trainer.total_training_steps=null").value("rllm.trainer.total_batches") == -1


@pytest.mark.parametrize(
    ("words", "derived"),
    [
        (
            ("data.train_batch_size=10", "training.num_minibatches=4"),
            {f"{ACTOR}.ppo_mini_batch_size": 3, "data.gen_batch_size": 10, f"{ACTOR}.use_kl_loss": False},
        ),
        (
            (
                "data.train_batch_size=8",
                "rllm.rejection_sample={enable: true, multiplier: 2}",
                f"{ACTOR}.kl_loss_coef=0.01",
            ),
            {f"{ACTOR}.ppo_mini_batch_size": 8, "data.gen_batch_size": 16, f"{ACTOR}.use_kl_loss": True},
        ),
        (
            (f"{ALGORITHM}.kl_beta=0.01", f"{ACTOR}.use_kl_loss=false", "rllm.rejection_sample.multiplier=2"),
            {f"{ACTOR}.use_kl_loss": False, "data.gen_batch_size": 64},
        ),
        ((f"{ALGORITHM}.kl_beta=0.0", f"{ACTOR}.kl_loss_coef=0.01"), {f"{ACTOR}.use_kl_loss": False}),
    ],
    ids=["minibatches", "multiplier", "set", "core wins"],
)
def test_derived_keys_follow_unless_they_are_set(run: Any, words: tuple[str, ...], derived: dict[str, Any]) -> None:
    composed = run(*words)
    assert {key: composed.value(key) for key in derived} == derived
