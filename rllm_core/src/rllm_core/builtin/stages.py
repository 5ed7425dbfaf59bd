"""Stages of a training step, in their order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.builtin.lazy import load_from
from rllm_core.contracts.stage import StagePlugin
from rllm_core.plugins.markers import hookimpl

_ROLLOUT, _TRANSFORM, _UPDATE = "pipeline.rollout_stages", "pipeline.transform_stages", "pipeline.update_stages"
_HONOURS = {
    "generate": "rllm.rollout.n sampling.train.*",
    "greedy_baseline": "rllm.algorithm.on_missing_reward",
    "compact_filter": "rllm.compact_filtering.* rllm.agent.overlong_filter rllm.mask_truncated_samples",
    "group": "rllm.transform.grouping",
    "check_rewards": "rllm.algorithm.on_missing_reward",
    "reject": "rllm.rejection_sample.enable rllm.rejection_sample.mode",
    "advantages": "rllm.algorithm.adv_estimator rllm.algorithm.estimator_map rllm.algorithm.use_precomputed_advantage "
    "rllm.algorithm.on_precomputed_mismatch rllm.stepwise_advantage.*",
    "update": "rllm.algorithm.loss_fn rllm.algorithm.loss_map",
}
"""Keys that a stage acts on."""


@hookimpl
def rllm_stages() -> Iterable[StagePlugin[Any]]:
    def stage(name: str, flow: str, module: str, implementation: str, summary: str, **fields: Any) -> StagePlugin[Any]:
        """`flow`: what it reads, an arrow, what it writes; `fields`: further ones of the record."""
        reads, _, writes = flow.partition("->")
        return StagePlugin(
            name=name,
            summary=summary,
            load=load_from(module, implementation),
            reads=frozenset(reads.split()),
            writes=frozenset(writes.split()),
            honours=frozenset(_HONOURS.get(name, "").split()),
            **fields,
        )

    yield stage("generate", "tasks -> episodes", _ROLLOUT, "Generate", "Play every task several times.", plays=True)
    flow = "episodes -> episodes trajectory_names"
    yield stage("impute_names", flow, _ROLLOUT, "ImputeNames", "Name nameless trajectories.", plays=True)
    flow = "tasks episodes trajectory_names -> episodes greedy_rewards"
    summary = "Play every task greedily as well, when an estimator compares with that."
    yield stage("greedy_baseline", flow, _ROLLOUT, "GreedyBaseline", summary, plays=True)
    summary = "Take out attempts that ended in masked ways."
    yield stage("compact_filter", "episodes -> episodes", _TRANSFORM, "CompactFilter", summary)
    flow = "episodes trajectory_names -> trajectory_groups"
    yield stage("group", flow, _TRANSFORM, "Group", "Put trajectories into groups.")
    flow = "trajectory_groups -> trajectory_groups rewards"
    yield stage("check_rewards", flow, _TRANSFORM, "CheckRewards", "Make sure every reward is a finite number.")
    flow = "trajectory_groups rewards -> trajectory_groups"
    yield stage("reject", flow, "pipeline.reject_stage", "Reject", "Choose the groups to train on now.", always=True)
    yield stage("build_batch", "trajectory_groups -> batch", _UPDATE, "BuildBatch", "Lay all tokens end to end.")
    summary = "Fill log-probs and values that are needed."
    yield stage("process", "batch -> batch.old_logprobs", _UPDATE, "Process", summary)
    flow = "batch rewards -> batch.advantages"
    yield stage("advantages", flow, _UPDATE, "EstimateAdvantages", "Estimate advantages, role by role.")
    flow = "batch batch.old_logprobs batch.advantages -> weights"
    yield stage("update", flow, _UPDATE, "Update", "Update the weights and publish them.")
    yield stage("log", "episodes -> metrics", _UPDATE, "Log", "Send metrics to the trackers.", always=True)
