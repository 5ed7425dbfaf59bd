"""Estimators, losses, groupings and rejection modes of the core."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.algorithms.loss_plugins import LOSSES
from rllm_core.algorithms.options import (
    DynamicRejectionParams,
    EpisodeRejectionParams,
    GroupRejectionParams,
    GrpoParams,
    ReinforcePlusPlusBaselineParams,
    RlooParams,
)
from rllm_core.contracts.estimator import EstimatorPlugin
from rllm_core.contracts.grouping import GroupingPlugin
from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.rejection import RejectionPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins.specs import hookimpl


@hookimpl
def rllm_estimators() -> Iterable[EstimatorPlugin[Any]]:
    yield EstimatorPlugin(
        name="grpo",
        summary="(reward - group mean) / group std. The default.",
        params=GrpoParams,
        load=load_from("rllm_core.algorithms.advantage", "grpo"),
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="reinforce",
        summary="The reward itself, no baseline.",
        load=load_from("rllm_core.algorithms.advantage", "reinforce"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        scope="trajectory",
        default_loss="importance_sampling",
    )
    yield EstimatorPlugin(
        name="reinforce_plus_plus_baseline",
        summary="Reward minus group mean, divided by the std over all groups of the role.",
        params=ReinforcePlusPlusBaselineParams,
        load=load_from("rllm_core.algorithms.advantage", "reinforce_plus_plus_baseline"),
        scope="role",
        default_loss="importance_sampling",
    )
    yield EstimatorPlugin(
        name="rloo",
        summary="Reward minus the mean of the group's other trajectories.",
        params=RlooParams,
        load=load_from("rllm_core.algorithms.advantage", "rloo"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        default_loss="importance_sampling",
    )


@hookimpl
def rllm_losses() -> Iterable[LossPlugin[Any]]:
    return LOSSES


@hookimpl
def rllm_groupings() -> Iterable[GroupingPlugin[Any]]:
    yield GroupingPlugin(
        name="task_role",
        summary="One group per task and role. The default.",
        load=load_from("rllm_core.algorithms.grouping", "by_task_and_role"),
        compares=frozenset({"rollouts"}),
    )
    yield GroupingPlugin(
        name="task",
        summary="One group per task: all roles are compared with each other.",
        load=load_from("rllm_core.algorithms.grouping", "by_task"),
        compares=frozenset({"rollouts", "roles"}),
    )
    yield GroupingPlugin(
        name="role",
        summary="One group per role: all tasks of the step are compared with each other.",
        load=load_from("rllm_core.algorithms.grouping", "by_role"),
        compares=frozenset({"rollouts", "tasks"}),
    )
    yield GroupingPlugin(
        name="episode",
        summary="One group per rollout: its roles are compared with each other.",
        load=load_from("rllm_core.algorithms.grouping", "by_episode"),
        compares=frozenset({"roles"}),
    )


@hookimpl
def rllm_rejections() -> Iterable[RejectionPlugin[Any]]:
    yield RejectionPlugin(
        name="none",
        summary="Train on every group.",
        load=load_from("rllm_core.algorithms.rejection", "KeepAll"),
    )
    yield RejectionPlugin(
        name="episode",
        summary="Collect groups over steps until enough tasks are partly solved.",
        params=EpisodeRejectionParams,
        load=load_from("rllm_core.algorithms.rejection", "WaitForPartialSolves"),
    )
    yield RejectionPlugin(
        name="group",
        summary="Drop groups that are too small or whose rewards are all equal.",
        params=GroupRejectionParams,
        load=load_from("rllm_core.algorithms.rejection", "DropWithoutSignal"),
    )
    yield RejectionPlugin(
        name="dynamic",
        summary="Like `group`, and generate more tasks until the batch is full. Surplus groups wait.",
        params=DynamicRejectionParams,
        load=load_from("rllm_core.algorithms.dynamic_sampling", "FillWithSignal"),
        updates_waited=1,
    )
