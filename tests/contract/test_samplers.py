"""Every sampler of this repository is held to the contract of samplers."""

from __future__ import annotations

from rllm_plugin_kit import SamplerContract

globals().update(
    SamplerContract.for_each(
        "rllm",
        difficulty={"options": ({}, {"key": "level", "memory": 0.0}, {"easy_share": 0.5, "hard_share": 0.5})},
        thompson={"options": ({}, {"key": "level"}, {"target": 0.8, "memory": 0.0})},
        drop_solved={"options": ({}, {"bound": 0.25})},
        levels={"options": ({}, {"window": 1, "tasks": 3, "solved": 0.5})},
        mixed={"options": ({}, {"ratios": {"source-0": 5.0, "source-1": 0.1}})},
    )
)
