"""Stages of a training step, in their order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.builtin.lazy import load_from
from rllm_core.contracts.plugin import NoParams
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
    def stage(name: str, summary: str, module: str, implementation: str, flow: str, **fields: Any) -> StagePlugin[Any]:
        """`flow`: what it reads, an arrow, what it writes; `fields`: further ones of the record."""
        reads, _, writes = flow.partition("->")
        return StagePlugin(
            name=name,
            summary=summary,
            params=NoParams,
            load=load_from(module, implementation),
            reads=frozenset(reads.split()),
            writes=frozenset(writes.split()),
            honours=frozenset(_HONOURS.get(name, "").split()),
            **fields,
        )

    flow = "tasks -> episodes"
    yield stage("generate", "Play every task several times.", _ROLLOUT, "Generate", flow, plays=True)
    flow = "episodes -> episodes trajectory_names"
    yield stage("impute_names", "Name nameless trajectories.", _ROLLOUT, "ImputeNames", flow, plays=True)
    flow = "tasks episodes trajectory_names -> episodes greedy_rewards"
    summary = "Play every task greedily as well, when an estimator compares with that."
    yield stage("greedy_baseline", summary, _ROLLOUT, "GreedyBaseline", flow, plays=True)
    flow = "episodes -> episodes"
    yield stage("compact_filter", "Take out attempts that ended in masked ways.", _TRANSFORM, "CompactFilter", flow)
    flow = "episodes trajectory_names -> trajectory_groups"
    yield stage("group", "Put trajectories into groups.", _TRANSFORM, "Group", flow)
    flow = "trajectory_groups -> trajectory_groups rewards"
    yield stage("check_rewards", "Make sure every reward is a finite number.", _TRANSFORM, "CheckRewards", flow)
    flow = "trajectory_groups rewards -> trajectory_groups"
    yield stage("reject", "Choose the groups to train on now.", "pipeline.reject_stage", "Reject", flow, always=True)
    flow = "trajectory_groups -> batch"
    yield stage("build_batch", "Lay all tokens end to end.", _UPDATE, "BuildBatch", flow)
    flow = "batch -> batch.old_logprobs"
    yield stage("process", "Fill log-probs and values that are needed.", _UPDATE, "Process", flow)
    flow = "batch rewards -> batch.advantages"
    yield stage("advantages", "Estimate advantages, role by role.", _UPDATE, "EstimateAdvantages", flow)
    flow = "batch batch.old_logprobs batch.advantages -> weights"
    yield stage("update", "Update the weights and publish them.", _UPDATE, "Update", flow)
    yield stage("log", "Send metrics to the trackers.", _UPDATE, "Log", "episodes -> metrics", always=True)
