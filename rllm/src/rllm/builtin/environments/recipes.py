"""Config values that train the model `tiny` from random weights on each environment, found by experiments.

The important ones: several optimizer steps per batch, an entropy bonus that ends long before the run does, advantages
that are centered but not divided by the group's standard deviation, and short prompts (a random model cannot read).
"""

from __future__ import annotations

from typing import Any

_OPTIMIZER: dict[str, Any] = {
    "rllm.algorithm.norm_adv_by_std_in_grpo": False,
    "rllm.algorithm.loss_agg_mode": "seq-mean-token-sum",
    "rllm.algorithm.eps_clip_high": 0.3,
    # One token is the whole answer, so an answer that is cut off there has lost nothing.
    "data.max_response_length": 1,
    "rllm.compact_filtering.mask_max_response_length_exceeded": False,
    "training.learning_rate": 1e-3,
    "training.warmup_steps_ratio": 0.02,
    "training.num_epochs": 2,
    "training.num_minibatches": 4,
}

GUESS_TINY: dict[str, Any] = _OPTIMIZER | {
    "rllm.env.env_args.prompt": "guess",
    "rllm.rollout.n": 16,
    "rllm.trainer.total_epochs": 240,
    "rllm.trainer.test_freq": 60,
    "rllm.algorithm.entropy": {"coeff": 0.04, "final_coeff": 0.0, "decay_steps": 210},
}

SUM_TINY: dict[str, Any] = _OPTIMIZER | {
    "rllm.env.env_args.prompt": "{a}+{b}",
    "rllm.rollout.n": 8,
    "data.train_batch_size": 32,
    "rllm.trainer.total_epochs": 75,
    "rllm.trainer.test_freq": 60,
    "rllm.algorithm.entropy": {"coeff": 0.03, "final_coeff": 0.0, "decay_steps": 200},
}

_ON_VERL = {
    "training.learning_rate": "actor_rollout_ref.actor.optim.lr",
    "training.warmup_steps_ratio": "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio",
    "training.num_epochs": "actor_rollout_ref.actor.ppo_epochs",
}


def on_verl(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe with the key names of the backend `verl`, and with the AdamW options of other backends."""
    named = {_ON_VERL.get(key, key): value for key, value in recipe.items()}
    return named | {
        "actor_rollout_ref.actor.optim.betas": [0.9, 0.95],
        "actor_rollout_ref.actor.optim.weight_decay": 0.0,
    }
