"""Every workflow of ours is held to the contract of workflows."""

from __future__ import annotations

from rllm_plugin_kit import WorkflowContract

globals().update(
    WorkflowContract.for_each(
        "rllm-core",
        "rllm-envs",
        "rllm-tools",
        multi_turn_workflow={"options": ({}, {"gamma": 0.5}), "turns": 3},
        tool_calling={"turns": 3},
        solver_judge={"options": ({}, {"n_solvers": 3}), "replies": ("1", "2", "3", "none of them")},
    )
)
