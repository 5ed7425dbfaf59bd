"""Every environment of ours is held to the contract of environments."""

from __future__ import annotations

from rllm_plugin_kit import EnvironmentContract

ROWS = ({"question": "2+2?", "answer": "4"}, {"messages": [{"role": "user", "content": "2+3?"}], "answer": "5"})

globals().update(
    EnvironmentContract.for_each(
        "rllm-envs",
        "rllm-tasks",
        guess={"options": ({}, {"prompt": "guess"}), "actions": ("8", "4", "2", "1", "0"), "max_steps": 5},
        question={"dataset": ROWS, "options": ({}, {"system_prompt": "Think."}), "actions": ("4",), "max_steps": 1},
        sum={"options": ({}, {"largest": 2}), "actions": ("0",), "max_steps": 1},
    )
)
