"""Settings that both verl and the core have: the table of rLLM's verl backend, and a few more."""

from __future__ import annotations

import math

from rllm_core.contracts.backend import DerivedKey, SharedKey
from rllm_verl.logprobs import MODE_FOLLOWS

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
ALGORITHM = "rllm.algorithm"
LEARNING_RATE = f"{ACTOR}.optim.lr"
LORA_RANK = "actor_rollout_ref.model.lora_rank"
MODEL = "actor_rollout_ref.model.path"


def _same(native: str, rllm: str) -> SharedKey:
    return SharedKey(native=native, rllm=rllm)


SHARED_KEYS = (
    _same("algorithm.adv_estimator", f"{ALGORITHM}.adv_estimator"),
    _same("algorithm.norm_adv_by_std_in_grpo", f"{ALGORITHM}.norm_adv_by_std_in_grpo"),
    _same("algorithm.rollout_correction.bypass_mode", f"{ALGORITHM}.rollout_correction.bypass_mode"),
    _same("algorithm.rollout_correction.rollout_is", f"{ALGORITHM}.rollout_correction.tis_mode"),
    _same("algorithm.rollout_correction.rollout_is_threshold", f"{ALGORITHM}.rollout_correction.tis_cap"),
    _same(
        "algorithm.rollout_correction.rollout_is_batch_normalize",
        f"{ALGORITHM}.rollout_correction.tis_batch_normalize",
    ),
    _same(f"{ACTOR}.kl_loss_coef", f"{ALGORITHM}.kl_beta"),
    SharedKey(
        native=f"{ACTOR}.policy_loss.loss_mode",
        rllm=f"{ALGORITHM}.loss_fn",
        spelled=(("ppo", "vanilla"), ("reinforce", "gpg"), ("gmpo", "geo_mean")),
    ),
    _same(f"{ACTOR}.loss_agg_mode", f"{ALGORITHM}.loss_agg_mode"),
    SharedKey(native=f"{ACTOR}.clip_ratio_high", rllm=f"{ALGORITHM}.eps_clip_high", while_null=f"{ALGORITHM}.eps_clip"),
    _same(f"{ROLLOUT}.n", "rllm.rollout.n"),
    _same(f"{ROLLOUT}.val_kwargs.n", "rllm.rollout.n_val"),
    _same("trainer.total_epochs", "rllm.trainer.total_epochs"),
    SharedKey(native="trainer.total_training_steps", rllm="rllm.trainer.total_batches", spelled=((-1, None),)),
    _same("trainer.logger", "rllm.trainer.logger"),
    _same("trainer.project_name", "rllm.trainer.project_name"),
    _same("trainer.experiment_name", "rllm.trainer.experiment_name"),
    _same("trainer.test_freq", "rllm.trainer.test_freq"),
    _same("trainer.save_freq", "rllm.trainer.save_freq"),
    _same("trainer.val_before_train", "rllm.trainer.val_before_train"),
    _same("trainer.val_only", "rllm.trainer.val_only"),
    # verl's other clip ratios. The entry for the upper bound is above.
    _same(f"{ACTOR}.clip_ratio", f"{ALGORITHM}.eps_clip"),
    _same(f"{ACTOR}.clip_ratio_low", f"{ALGORITHM}.eps_clip"),
    # Keys that the core also has, but for which rLLM reads only verl's name.
    _same(f"{ACTOR}.entropy_coeff", f"{ALGORITHM}.entropy.coeff"),
    SharedKey(
        native=f"{ACTOR}.kl_loss_type",
        rllm=f"{ALGORITHM}.kl_estimator",
        spelled=(("k3", "low_var_kl"), ("k1", "kl"), ("k2", "mse")),
    ),
    SharedKey(native=f"{ACTOR}.optim.lr_scheduler_type", rllm=f"{ALGORITHM}.lr_schedule", deprecated=False),
    SharedKey(native=f"{ACTOR}.optim.lr_warmup_steps_ratio", rllm=f"{ALGORITHM}.warmup_steps_ratio", deprecated=False),
    *(_same(f"{ROLLOUT}.{name}", f"sampling.train.{name}") for name in ("temperature", "top_p", "top_k")),
    *(_same(f"{ROLLOUT}.val_kwargs.{name}", f"sampling.val.{name}") for name in ("temperature", "top_p", "top_k")),
)


def _uses_kl_loss(kl_loss_coef: float | None) -> bool:
    return (kl_loss_coef or 0.0) > 0


def _tasks_drawn(train_batch_size: int, multiplier: int, enabled: bool) -> int:
    return train_batch_size * (multiplier if enabled else 1)


def _tasks_per_minibatch(train_batch_size: int, num_minibatches: int) -> int:
    return math.ceil(train_batch_size / num_minibatches)


DERIVED_KEYS = (
    DerivedKey(native=f"{ACTOR}.use_kl_loss", of=(f"{ALGORITHM}.kl_beta",), derive=_uses_kl_loss),
    DerivedKey(
        native="data.gen_batch_size",
        of=("data.train_batch_size", "rllm.rejection_sample.multiplier", "rllm.rejection_sample.enable"),
        derive=_tasks_drawn,
    ),
    DerivedKey(
        native=f"{ACTOR}.ppo_mini_batch_size",
        of=("data.train_batch_size", "training.num_minibatches"),
        derive=_tasks_per_minibatch,
    ),
    MODE_FOLLOWS,
)
