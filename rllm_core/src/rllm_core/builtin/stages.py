"""Stages of a training step, in their order, and the objective that needs no others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts.objective import ObjectivePlugin
from rllm_core.contracts.stage import StagePlugin
from rllm_core.lazy import load_from
from rllm_core.plugins.specs import hookimpl

STAGES: tuple[StagePlugin[Any], ...] = (
    StagePlugin(
        name="generate",
        summary="Generate several rollouts of every task.",
        load=load_from("rllm_core.pipeline.rollout_stages", "Generate"),
        reads=frozenset({"tasks"}),
        writes=frozenset({"episodes"}),
        config_keys=frozenset({"rllm.rollout.n", "sampling.train.*"}),
        is_rollout_stage=True,
    ),
    StagePlugin(
        name="impute_names",
        summary="Give a name to trajectories without one.",
        load=load_from("rllm_core.pipeline.rollout_stages", "ImputeNames"),
        reads=frozenset({"episodes"}),
        writes=frozenset({"episodes", "trajectory_names"}),
        is_rollout_stage=True,
    ),
    StagePlugin(
        name="greedy_baseline",
        summary="Generate one greedy rollout of every task, if an estimator needs it.",
        load=load_from("rllm_core.pipeline.rollout_stages", "GreedyBaseline"),
        reads=frozenset({"tasks", "episodes", "trajectory_names"}),
        writes=frozenset({"episodes", "greedy_rewards"}),
        config_keys=frozenset({"rllm.algorithm.on_missing_reward"}),
        is_rollout_stage=True,
    ),
    StagePlugin(
        name="compact_filter",
        summary="Mask rollouts by their termination reason.",
        load=load_from("rllm_core.pipeline.transform_stages", "CompactFilter"),
        reads=frozenset({"episodes"}),
        writes=frozenset({"episodes"}),
        config_keys=frozenset(
            {"rllm.compact_filtering.*", "rllm.agent.overlong_filter", "rllm.mask_truncated_samples"},
        ),
    ),
    StagePlugin(
        name="group",
        summary="Group trajectories.",
        load=load_from("rllm_core.pipeline.transform_stages", "Group"),
        reads=frozenset({"episodes", "trajectory_names"}),
        writes=frozenset({"trajectory_groups"}),
        config_keys=frozenset({"rllm.transform.grouping"}),
    ),
    StagePlugin(
        name="check_rewards",
        summary="Check that every reward is a finite number.",
        load=load_from("rllm_core.pipeline.transform_stages", "CheckRewards"),
        reads=frozenset({"trajectory_groups"}),
        writes=frozenset({"trajectory_groups", "rewards"}),
        config_keys=frozenset({"rllm.algorithm.on_missing_reward"}),
    ),
    StagePlugin(
        name="reject",
        summary="Choose the groups to train on now.",
        load=load_from("rllm_core.pipeline.reject_stage", "Reject"),
        reads=frozenset({"trajectory_groups", "rewards"}),
        writes=frozenset({"trajectory_groups"}),
        config_keys=frozenset({"rllm.rejection_sample.enable", "rllm.rejection_sample.mode"}),
        always=True,
    ),
    StagePlugin(
        name="build_batch",
        summary="Concatenate all tokens in one batch.",
        load=load_from("rllm_core.pipeline.update_stages", "BuildBatch"),
        reads=frozenset({"trajectory_groups"}),
        writes=frozenset({"batch"}),
    ),
    StagePlugin(
        name="process",
        summary="Compute the log-probs and values that the run needs.",
        load=load_from("rllm_core.pipeline.update_stages", "Process"),
        reads=frozenset({"batch"}),
        writes=frozenset({"batch.old_logprobs"}),
    ),
    StagePlugin(
        name="advantages",
        summary="Estimate advantages, role by role.",
        load=load_from("rllm_core.pipeline.update_stages", "EstimateAdvantages"),
        reads=frozenset({"batch", "rewards"}),
        writes=frozenset({"batch.advantages"}),
        config_keys=frozenset(
            {
                "rllm.algorithm.adv_estimator",
                "rllm.algorithm.estimator_map",
                "rllm.algorithm.use_precomputed_advantage",
                "rllm.algorithm.on_precomputed_mismatch",
                "rllm.stepwise_advantage.*",
            }
        ),
    ),
    StagePlugin(
        name="update",
        summary="Update the weights and sync them to the rollout engine.",
        load=load_from("rllm_core.pipeline.update_stages", "Update"),
        reads=frozenset({"batch", "batch.old_logprobs", "batch.advantages"}),
        writes=frozenset({"weights"}),
        config_keys=frozenset({"rllm.algorithm.loss_fn", "rllm.algorithm.loss_map"}),
    ),
    StagePlugin(
        name="log",
        summary="Send metrics to the trackers.",
        load=load_from("rllm_core.pipeline.update_stages", "Log"),
        reads=frozenset({"episodes"}),
        writes=frozenset({"metrics"}),
        always=True,
    ),
)
"""The order of a run without ``rllm.pipeline``."""


@hookimpl
def rllm_stages() -> Iterable[StagePlugin[Any]]:
    return STAGES


@hookimpl
def rllm_objectives() -> Iterable[ObjectivePlugin]:
    yield ObjectivePlugin(name="rl", summary="Learn from rewards.")
