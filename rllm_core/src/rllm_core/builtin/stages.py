"""Stages of a training step, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rllm_core.builtin.lazy import load_from
from rllm_core.contracts.stage import StagePlugin
from rllm_core.plugins.markers import hookimpl


@hookimpl
def rllm_stages() -> Iterable[StagePlugin[Any]]:
    def stage(
        name: str,
        summary: str,
        load: Callable[[], Any],
        reads: str,
        writes: str,
        honours: str = "",
        always: bool = False,
    ) -> StagePlugin[Any]:
        return StagePlugin(
            name=name,
            summary=summary,
            load=load,
            reads=frozenset(reads.split()),
            writes=frozenset(writes.split()),
            honours=frozenset(key if key.startswith("sampling") else f"rllm.{key}" for key in honours.split()),
            always=always,
        )

    rollout, transform, update = "pipeline.rollout_stages", "pipeline.transform_stages", "pipeline.update_stages"
    yield stage(
        "generate",
        "Play every task several times.",
        load_from(rollout, "Generate"),
        "tasks",
        "episodes",
        "rollout.n sampling.train.*",
    )
    yield stage(
        "impute_names",
        "Name nameless trajectories.",
        load_from(rollout, "ImputeNames"),
        "episodes",
        "episodes trajectory_names",
    )
    yield stage(
        "greedy_baseline",
        "Play every task greedily as well, when an estimator compares with that.",
        load_from(rollout, "GreedyBaseline"),
        "tasks episodes trajectory_names",
        "episodes greedy_rewards",
        "algorithm.on_missing_reward",
    )
    yield stage(
        "compact_filter",
        "Take out attempts that ended in masked ways.",
        load_from(transform, "CompactFilter"),
        "episodes",
        "episodes",
        "compact_filtering.* agent.overlong_filter mask_truncated_samples",
    )
    yield stage(
        "group",
        "Put trajectories into groups.",
        load_from(transform, "Group"),
        "episodes trajectory_names",
        "trajectory_groups",
        "transform.grouping",
    )
    yield stage(
        "check_rewards",
        "Make sure every reward is a finite number.",
        load_from(transform, "CheckRewards"),
        "trajectory_groups",
        "trajectory_groups rewards",
        "algorithm.on_missing_reward",
    )
    yield stage(
        "reject",
        "Choose the groups to train on now.",
        load_from("pipeline.reject_stage", "Reject"),
        "trajectory_groups rewards",
        "trajectory_groups",
        "rejection_sample.enable rejection_sample.mode",
        always=True,
    )
    yield stage(
        "build_batch", "Lay all tokens end to end.", load_from(update, "BuildBatch"), "trajectory_groups", "batch"
    )
    yield stage(
        "process",
        "Fill log-probs and values that are needed.",
        load_from(update, "Process"),
        "batch",
        "batch.old_logprobs",
    )
    yield stage(
        "advantages",
        "Estimate advantages, role by role.",
        load_from(update, "EstimateAdvantages"),
        "batch rewards",
        "batch.advantages",
        "algorithm.adv_estimator algorithm.estimator_map algorithm.use_precomputed_advantage "
        "algorithm.on_precomputed_mismatch stepwise_advantage.*",
    )
    yield stage(
        "update",
        "Update the weights and publish them.",
        load_from(update, "Update"),
        "batch batch.old_logprobs batch.advantages",
        "weights",
        "algorithm.loss_fn algorithm.loss_map",
    )
    yield stage("log", "Send metrics to the trackers.", load_from(update, "Log"), "episodes", "metrics", always=True)
