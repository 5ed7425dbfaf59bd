"""Every loss of this repository keeps the contract of losses."""

from __future__ import annotations

from rllm_plugin_kit import LossContract

DETACHED = {"gradient": "surrogate"}

globals().update(
    LossContract.for_each(
        "rllm-core",
        "rllm-estimators",
        ppo={"options": ({}, {"eps_clip_high": 0.3, "clip_ratio_c": 3.0})},
        cispo=DETACHED,
        dppo_tv=DETACHED,
        dppo_kl=DETACHED,
        gspo=DETACHED,
        fipo=DETACHED,
        reinforce_kl={"options": ({}, {"ratio_clamp_max": 1.5}), **DETACHED},
        topr={"options": ({}, {"level": "token"}), **DETACHED},
        vespo=DETACHED,
        # Large enough shares that some tokens of such short rows are chosen.
        kl_cov={"options": ({}, {"kl_cov_ratio": 0.3})},
        clip_cov={"options": ({}, {"clip_cov_ratio": 0.3, "clip_cov_lb": 0.0})},
    )
)
