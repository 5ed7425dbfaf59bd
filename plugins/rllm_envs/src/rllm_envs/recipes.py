"""Config values that train the model `tiny` from random weights on each environment; see docs/recipes.md."""

from __future__ import annotations

from typing import Any

GUESS_TINY: dict[str, Any] = {
    "rllm.env.env_args.prompt": "guess",
    "rllm.rollout.n": 16,
    "rllm.trainer.total_batches": 400,
    "rllm.trainer.test_freq": 50,
    "rllm.algorithm.norm_adv_by_std_in_grpo": False,
    "rllm.algorithm.entropy": {"coeff": 0.03, "final_coeff": 0.0, "decay_steps": 300},
    "data.max_response_length": 1,
    "training.learning_rate": 1e-3,
    "training.num_epochs": 2,
}

SUM_TINY: dict[str, Any] = {
    "rllm.env.env_args.prompt": "{a}+{b}",
    "rllm.rollout.n": 16,
    "rllm.trainer.total_batches": 300,
    "rllm.trainer.test_freq": 50,
    "rllm.algorithm.norm_adv_by_std_in_grpo": False,
    "data.max_response_length": 1,
    "training.learning_rate": 1e-3,
    "training.num_epochs": 2,
}
