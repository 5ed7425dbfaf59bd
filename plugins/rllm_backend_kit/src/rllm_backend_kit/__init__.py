"""Shared code for backends: the parts of an update in torch, and the run's renderer."""

from __future__ import annotations

COMMON_KEYS = frozenset(
    {
        "rllm.renderer",
        "rllm.disable_thinking",
        "rllm.algorithm.loss_agg_mode",
        "rllm.algorithm.entropy.*",
        "rllm.algorithm.kl_beta",
        "rllm.algorithm.kl_estimator",
        "rllm.algorithm.rollout_correction.*",
    }
)
"""Config keys that every backend of this project reads."""
