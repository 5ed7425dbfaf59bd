"""The option of an environment that gives a run validation tasks."""

from __future__ import annotations

import shlex

from rllm.planning.plan import RunPlan

TASKS = 8
"""A number of validation tasks that all environments have."""


def find_validation_option(plan: RunPlan) -> str | None:
    """Return a command-line argument with which the environment has validation tasks. None if a dataset has them."""
    params = plan.environment.params if plan.environment else None
    if params is not None and hasattr(params, "val_directory"):
        return f"rllm.env.env_args.val_directory={shlex.quote(params.directory)}"
    return f"rllm.env.env_args.val_size={TASKS}" if hasattr(params, "val_size") else None
