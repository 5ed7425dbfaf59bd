"""verl's keys that the core also has (the table of rLLM's verl backend and a few more), and its keys without effect.

A key has no effect if a different part of `rllm` does its work. The table lists the key to set instead.
"""

from __future__ import annotations

import math

from rllm_core.contracts.backend import DerivedKey, SharedKey

TINY = "tiny"
"""The name of the model of rllm-local with random weights."""
ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"

ALGORITHM = "rllm.algorithm"
LEARNING_RATE = f"{ACTOR}.optim.lr"
LORA_RANK = f"{MODEL}.lora_rank"
MODEL_PATH = f"{MODEL}.path"


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


def _num_tasks_per_batch(train_batch_size: int, multiplier: int, enabled: bool) -> int:
    return train_batch_size * (multiplier if enabled else 1)


def _num_tasks_per_minibatch(train_batch_size: int, num_minibatches: int) -> int:
    return math.ceil(train_batch_size / num_minibatches)


DERIVED_KEYS = (
    DerivedKey(native=f"{ACTOR}.use_kl_loss", of=(f"{ALGORITHM}.kl_beta",), derive=_uses_kl_loss),
    DerivedKey(
        native="data.gen_batch_size",
        of=("data.train_batch_size", "rllm.rejection_sample.multiplier", "rllm.rejection_sample.enable"),
        derive=_num_tasks_per_batch,
    ),
    DerivedKey(
        native=f"{ACTOR}.ppo_mini_batch_size",
        of=("data.train_batch_size", "training.num_minibatches"),
        derive=_num_tasks_per_minibatch,
    ),
)


_ADVANTAGES = "Set rllm.algorithm.adv_estimator. `rllm plugins info estimator NAME` lists an estimator's options."
_CHECKPOINTS = "Set rllm.trainer.output_dir, save_freq and keep_checkpoints. Use --resume to continue a run."
_CORRECTION = "Set rllm.algorithm.rollout_correction.preset, reject, tis_mode, tis_floor or tis_beyond_cap."
_DIVERGENCE = "Set rllm.algorithm.kl_beta. rllm adds the KL divergence to the loss."
_LEARNING_RATE = "Set rllm.algorithm.lr_schedule and rllm.algorithm.warmup_steps_ratio."
_LOSS_OPTION = "Set it as an option of the loss: rllm.algorithm.loss_fn={name: NAME, OPTION: VALUE}."
_PROFILER = "Only verl's own trainer starts verl's profiler, and rllm does not use that trainer."
_REWARDS = "Rewards come from the environment, or from an agent's workflow: rllm.env.name."
_ROLLOUTS = "Set rllm.workflow.name, and rllm.workflow.n_parallel_tasks for the number of concurrent rollouts."
_TASKS = "Tasks come from the environment, or from data.train_dataset and data.val_dataset."
_TRAINER = "Only verl's own trainer reads it, and rllm does not use that trainer."
_VALIDATION = "Set sampling.val.temperature (0 is greedy)."

UNUSED_KEYS = {
    "algorithm.rollout_correction.*": _CORRECTION,
    "algorithm.filter_groups.*": "Set rllm.rejection_sample.enable=true and rllm.rejection_sample.mode.",
    "algorithm.use_kl_in_reward": _DIVERGENCE,
    "algorithm.kl_ctrl.*": _DIVERGENCE,
    "algorithm.kl_penalty": _DIVERGENCE,
    "algorithm.*": _ADVANTAGES,
    f"{ACTOR}.optim.lr_warmup_steps": _LEARNING_RATE,
    f"{ACTOR}.optim.lr_warmup_init": _LEARNING_RATE,
    f"{ACTOR}.optim.lr_decay_steps": _LEARNING_RATE,
    f"{ACTOR}.optim.lr_decay_style": _LEARNING_RATE,
    f"{ACTOR}.optim.lr_wsd_decay_style": _LEARNING_RATE,
    f"{ACTOR}.optim.lr_wsd_decay_steps": _LEARNING_RATE,
    f"{ACTOR}.optim.total_training_steps": "Set rllm.trainer.total_batches.",
    f"{ACTOR}.optim.min_lr": _LEARNING_RATE,
    f"{ACTOR}.optim.min_lr_ratio": _LEARNING_RATE,
    f"{ACTOR}.optim.num_cycles": _LEARNING_RATE,
    f"{ACTOR}.optim.warmup_style": _LEARNING_RATE,
    f"{ACTOR}.optim.zero_indexed_step": _LEARNING_RATE,
    f"{ACTOR}.grad_clip": f"Set {ACTOR}.optim.clip_grad.",
    f"{ACTOR}.rollout_n": "Set rllm.rollout.n.",
    f"{REF}.rollout_n": "Set rllm.rollout.n.",
    f"{ACTOR}.use_remove_padding": f"Set {MODEL}.use_remove_padding.",
    f"{ACTOR}.use_fused_kernels": f"Set {MODEL}.use_fused_kernels.",
    f"{ACTOR}.use_prefix_grouper": _TRAINER,
    f"{ACTOR}.freeze_vision_tower": "rllm trains on text only. Use a model without a vision tower.",
    f"{ACTOR}.checkpoint.load_contents": _CHECKPOINTS,
    f"{MODEL}.tiled_mlp.*": "verl 0.9.1 does not read it.",
    f"{REF}.strategy": f"Set {ACTOR}.strategy.",
    "actor_rollout_ref.nccl_timeout": "verl 0.9.1 does not read it.",
    "trainer.ray_wait_register_center_timeout": "Set deadlines.start.",
    f"{ACTOR}.fsdp_config.strategy": f"Set {ACTOR}.strategy.",
    f"{REF}.fsdp_config.strategy": f"Set {ACTOR}.strategy.",
    f"{ACTOR}.ppo_mini_batch_size": "Set training.num_minibatches to data.train_batch_size / ppo_mini_batch_size.",
    f"{ACTOR}.ppo_micro_batch_size": f"Set {ACTOR}.ppo_micro_batch_size_per_gpu, with use_dynamic_bsz=false.",
    f"{ACTOR}.shuffle": "rllm always assigns rows to minibatches at random, with rllm.trainer.seed.",
    f"{ACTOR}.data_loader_seed": "Set rllm.trainer.seed.",
    f"{ACTOR}.clip_ratio_c": _LOSS_OPTION,
    f"{ACTOR}.tau_pos": _LOSS_OPTION,
    f"{ACTOR}.tau_neg": _LOSS_OPTION,
    f"{ACTOR}.policy_loss.*": _LOSS_OPTION,
    f"{ACTOR}.loss_scale_factor": "seq-mean-token-sum-norm always divides by data.max_response_length.",
    f"{ACTOR}.calculate_sum_pi_squared": "rllm computes it if the estimator needs it.",
    f"{ACTOR}.use_rollout_log_probs": "Set rllm.algorithm.rollout_correction.bypass_mode.",
    f"{ACTOR}.profiler.*": _PROFILER,
    f"{REF}.profiler.*": _PROFILER,
    f"{REF}.log_prob_micro_batch_size": f"Set {REF}.log_prob_micro_batch_size_per_gpu.",
    f"{ROLLOUT}.profiler.*": _PROFILER,
    f"{ROLLOUT}.agent.*": _ROLLOUTS,
    f"{ROLLOUT}.multi_turn.*": _ROLLOUTS,
    f"{ROLLOUT}.trace.*": "Set rllm.episode_logging.log_episodes=true, or add a tracker to rllm.trainer.logger.",
    f"{ROLLOUT}.over_sample_rate": "Set rllm.rejection_sample.multiplier.",
    f"{ROLLOUT}.do_sample": "Set sampling.train.temperature (0 is greedy).",
    f"{ROLLOUT}.val_kwargs.do_sample": _VALIDATION,
    f"{ROLLOUT}.calculate_log_probs": "rllm always requests log-probs.",
    f"{ROLLOUT}.prompt_length": "Set data.max_prompt_length.",
    f"{ROLLOUT}.response_length": "Set data.max_response_length.",
    f"{ROLLOUT}.log_prob_micro_batch_size": f"Set {ROLLOUT}.log_prob_micro_batch_size_per_gpu.",
    "actor_rollout_ref.hybrid_engine": f"Set {ROLLOUT}.nnodes above 0 to give rollout servers separate GPUs.",
    "critic.*": "The backend verl has no critic. Use an estimator without values, or the backend local.",
    "custom_reward_function.*": _REWARDS,
    "data.gen_batch_size": "Set rllm.rejection_sample.multiplier.",
    "data.filter_overlong_prompts": "A prompt above data.max_prompt_length stops its rollout: rllm.compact_filtering.",
    "data.truncation": "A prompt above data.max_prompt_length stops its rollout: rllm.compact_filtering.",
    "data.*": _TASKS,
    "distillation.*": "Set the steps' advantages in a workflow: rllm.algorithm.use_precomputed_advantage.",
    "global_profiler.*": _PROFILER,
    "model_engine": "Set rllm.profile=megatron.",
    "ray_kwargs.timeline_json_file": _PROFILER,
    "reward.*": _REWARDS,
    "reward_model.*": _REWARDS,
    "sandbox_fusion.*": _REWARDS,
    "skip.*": _TRAINER,
    "trainer.balance_batch": "rllm always distributes rows so that all GPUs get about the same number of tokens.",
    "trainer.critic_warmup": _TRAINER,
    "trainer.checkpoint_callback_class": "Add an observer: rllm.trainer.observers.",
    "trainer.default_hdfs_dir": _CHECKPOINTS,
    "trainer.default_local_dir": _CHECKPOINTS,
    "trainer.del_local_ckpt_after_load": _CHECKPOINTS,
    "trainer.esi_redundant_time": _CHECKPOINTS,
    "trainer.log_val_generations": "Set rllm.episode_logging.log_episodes=true.",
    "trainer.max_actor_ckpt_to_keep": _CHECKPOINTS,
    "trainer.max_critic_ckpt_to_keep": _CHECKPOINTS,
    "trainer.resume_from_path": _CHECKPOINTS,
    "trainer.resume_mode": _CHECKPOINTS,
    "trainer.rollout_data_dir": "Set rllm.episode_logging.log_episodes=true.",
    "trainer.use_v1": _TRAINER,
    "trainer.v1.*": _TRAINER,
    "trainer.validation_data_dir": "Set rllm.episode_logging.log_episodes=true.",
    "transfer_queue.*": _TRAINER,
}
"""Advice by key or section (``critic.*``). The first entry that matches a key is used."""

_OF_VLLM = (
    "cudagraph_capture_sizes",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "enable_sleep_mode",
    "enforce_eager",
    "engine_kwargs.*",
    "expert_parallel_size",
    "gpu_memory_utilization",
    "logprobs_mode",
    "max_num_batched_tokens",
    "quantization",
    "quantization_config_file",
    "repetition_penalty",
    "scheduling_policy",
    "skip_tokenizer_init",
)
UNUSED_KEYS_BY_PROFILE = {
    "cpu": {
        f"{ROLLOUT}.{name}": "Remove it. Only vLLM reads it, and the profile cpu does not use vLLM."
        for name in _OF_VLLM
    }
}
"""Keys by profile that only vLLM reads, for profiles without vLLM."""
