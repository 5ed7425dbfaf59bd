"""The workflow `tree` and the estimator `tree`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts.estimator import EstimatorPlugin
from rllm_core.contracts.workflow import TURN_KEYS, WorkflowPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1


@hookimpl
def rllm_workflows() -> Iterable[WorkflowPlugin[Any]]:
    yield WorkflowPlugin(
        name="tree",
        summary="Several turns with the environment, forked into leaves that share their beginnings.",
        load_params=load_from("rllm.builtin.tree_rollouts.workflow", "TreeParams"),
        load=load_from("rllm.builtin.tree_rollouts.workflow", "TreeWorkflow"),
        needs_environment=True,
        config_keys=TURN_KEYS,
    )


@hookimpl
def rllm_estimators() -> Iterable[EstimatorPlugin[Any]]:
    yield EstimatorPlugin(
        name="tree",
        summary="Per part of a tree, the mean reward of the leaves after it minus a baseline of other branches.",
        load=load_from("rllm.builtin.tree_rollouts.estimator", "tree"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        level="token",
        scope="role",
        default_loss="ppo",
    )
