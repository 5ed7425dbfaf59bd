"""Every workflow of this repository keeps the contract of workflows."""

from __future__ import annotations

import sys

import talking_agent
from gateway_in_process import opened_here

from rllm_plugin_kit import WorkflowContract

AGENT = talking_agent.__file__

globals().update(
    WorkflowContract.for_each(
        "rllm-core",
        "rllm",
        "rllm-gateway",
        "rllm",
        agent={
            "options": ({"agent": f"{AGENT}:solve"}, {"command": [sys.executable, AGENT]}),
            "opening": staticmethod(opened_here),
        },
        multi_turn_workflow={"options": ({}, {"gamma": 0.5}), "turns": 3},
        tool_calling={"turns": 3},
        tree={"turns": 3, "options": ({}, {"leaves": 5, "branches": 3})},
        solver_judge={"options": ({}, {"n_solvers": 3}), "responses": ("1", "2", "3", "none of them")},
    )
)
