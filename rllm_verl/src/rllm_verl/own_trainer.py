"""Keys and defaults of verl's own trainer that differ from rllm's."""

from __future__ import annotations

from rllm_verl.settings import MODEL
from rllm_verl.shared_keys import ACTOR, ALGORITHM, ROLLOUT

REF = "actor_rollout_ref.ref"
VAL = f"{ROLLOUT}.val_kwargs"
FILTER = "algorithm.filter_groups"
REJECTION = "rllm.rejection_sample"
MINIBATCHES = "training.num_minibatches"
RENAMED = {
    f"{ACTOR}.grad_clip": f"{ACTOR}.optim.clip_grad",
    f"{ACTOR}.use_remove_padding": f"{MODEL}.use_remove_padding",
    f"{ACTOR}.use_fused_kernels": f"{MODEL}.use_fused_kernels",
    f"{ROLLOUT}.prompt_length": "data.max_prompt_length",
    f"{ROLLOUT}.response_length": "data.max_response_length",
    "data.seed": "rllm.trainer.seed",
    "data.prompt_key": "rllm.env.env_args.prompt",
}
"""Keys with a different name and the same meaning."""
DEFAULTS = {
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    f"{ALGORITHM}.adv_estimator": "gae",
    "rllm.rollout.n": 1,
    "rllm.trainer.total_epochs": 30,
    "rllm.trainer.test_freq": -1,
    "rllm.trainer.save_freq": -1,
}
"""Defaults of verl's trainer that differ from rllm's defaults."""
PPO_MINI_BATCH_SIZE, KL_LOSS_COEF, KL_REWARD_COEF, CLIP_RATIO_C, CLIP_RATIO_HIGH = 256, 0.001, 0.001, 3.0, 0.2
MICRO_BATCHES = (
    f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    f"{REF}.log_prob_micro_batch_size_per_gpu",
)
DATA_SIDES = {"train": "data.train_dataset", "val": "data.val_dataset"}
ONE_FILE = "A dataset must be one file or directory. Put the files into a directory and set {ours} to it."
FILLED = f"Micro-batches are filled with tokens, up to {ACTOR}.ppo_max_token_len_per_gpu."
NO_KL = f"{ACTOR}.use_kl_loss is false, so the loss has no KL term."
NOT_IN_REWARD = "algorithm.use_kl_in_reward is false, so the reward has no KL term."
IN_REWARD = "rllm has no KL term in the reward. For a KL term in the loss, set {ours}={weight}."
NO_REWARD = "verl selects a row's reward by its data_source. Set a reward: `--reward NAME`, or rllm.reward in the file."
OTHER_FILE = "Convert that file as well, and pass both: --config FILE --config THIS."
