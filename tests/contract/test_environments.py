"""Every environment of ours is held to the contract of environments."""

from __future__ import annotations

from rllm_plugin_kit import EnvironmentContract

globals().update(
    EnvironmentContract.for_each(
        "rllm-envs",
        guess={"options": ({}, {"prompt": "guess"}), "actions": ("8", "4", "2", "1", "0"), "max_steps": 5},
        sum={"options": ({}, {"largest": 2}), "actions": ("0",), "max_steps": 1},
    )
)
