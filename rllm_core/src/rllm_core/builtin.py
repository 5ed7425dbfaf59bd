"""What the core itself offers, through the same hooks as everybody else's plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from rllm_core.algorithms.options import (
    DynamicRejectionParams,
    EpisodeRejectionParams,
    GroupRejectionParams,
    GrpoParams,
    PpoParams,
    ReinforcePlusPlusBaselineParams,
    RlooParams,
)
from rllm_core.contracts.agent import AgentPlugin
from rllm_core.contracts.dataset import DatasetPlugin
from rllm_core.contracts.estimator import EstimatorPlugin
from rllm_core.contracts.grouping import GroupingPlugin
from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.rejection import RejectionPlugin
from rllm_core.contracts.stage import StagePlugin
from rllm_core.contracts.tracker import TrackerPlugin
from rllm_core.contracts.workflow import WorkflowPlugin
from rllm_core.plugins.markers import hookimpl
from rllm_core.rollout.options import AgentWorkflowParams, MathAgentParams
from rllm_core.rollout.task_files import TaskFileParams
from rllm_core.tracking.options import JsonLinesParams


def _from(module: str, name: str) -> Callable[[], Any]:
    """A `load` that imports ``rllm_core.<module>`` when it is called."""
    return lambda: getattr(import_module(f"rllm_core.{module}"), name)


@hookimpl
def rllm_estimators() -> Iterable[EstimatorPlugin[Any]]:
    yield EstimatorPlugin(
        name="grpo",
        summary="(reward - group mean) / group std; the default.",
        params=GrpoParams,
        load=_from("algorithms.advantage", "grpo"),
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="reinforce",
        summary="The reward itself, no baseline.",
        params=NoParams,
        load=_from("algorithms.advantage", "reinforce"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        scope="trajectory",
        default_loss="importance_sampling",
    )
    yield EstimatorPlugin(
        name="reinforce_plus_plus_baseline",
        summary="Reward minus group mean, divided by the std over all groups of the role.",
        params=ReinforcePlusPlusBaselineParams,
        load=_from("algorithms.advantage", "reinforce_plus_plus_baseline"),
        scope="role",
        default_loss="importance_sampling",
    )
    yield EstimatorPlugin(
        name="rloo",
        summary="Reward minus the mean of the group's other trajectories.",
        params=RlooParams,
        load=_from("algorithms.advantage", "rloo"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        default_loss="importance_sampling",
    )


@hookimpl
def rllm_losses() -> Iterable[LossPlugin[Any]]:
    yield LossPlugin(
        name="ppo",
        summary="Clipped importance ratio.",
        params=PpoParams,
        load=_from("updates.losses", "ppo"),
    )
    yield LossPlugin(
        name="importance_sampling",
        summary="Importance ratio times advantage, no clipping.",
        params=NoParams,
        load=_from("updates.losses", "importance_sampling"),
    )
    yield LossPlugin(
        name="reinforce",
        summary="Log-prob times advantage, on-policy.",
        params=NoParams,
        load=_from("updates.losses", "reinforce"),
    )


@hookimpl
def rllm_groupings() -> Iterable[GroupingPlugin[Any]]:
    yield GroupingPlugin(
        name="task_role",
        summary="One group per task and role; the default.",
        params=NoParams,
        load=_from("algorithms.grouping", "by_task_and_role"),
        compares=frozenset({"attempts"}),
    )
    yield GroupingPlugin(
        name="task",
        summary="One group per task: all roles are compared with each other.",
        params=NoParams,
        load=_from("algorithms.grouping", "by_task"),
        compares=frozenset({"attempts", "roles"}),
    )
    yield GroupingPlugin(
        name="role",
        summary="One group per role: all tasks of the step are compared with each other.",
        params=NoParams,
        load=_from("algorithms.grouping", "by_role"),
        compares=frozenset({"attempts", "tasks"}),
    )
    yield GroupingPlugin(
        name="episode",
        summary="One group per attempt: its roles are compared with each other.",
        params=NoParams,
        load=_from("algorithms.grouping", "by_episode"),
        compares=frozenset({"roles"}),
    )


@hookimpl
def rllm_rejections() -> Iterable[RejectionPlugin[Any]]:
    yield RejectionPlugin(
        name="none",
        summary="Train on every group.",
        params=NoParams,
        load=_from("algorithms.rejection", "KeepAll"),
    )
    yield RejectionPlugin(
        name="episode",
        summary="Gather groups over steps until enough tasks are partly solved.",
        params=EpisodeRejectionParams,
        load=_from("algorithms.rejection", "WaitForPartialSolves"),
    )
    yield RejectionPlugin(
        name="group",
        summary="Drop groups that are too small or whose rewards are all equal.",
        params=GroupRejectionParams,
        load=_from("algorithms.rejection", "DropWithoutSignal"),
    )
    yield RejectionPlugin(
        name="dynamic",
        summary="Drop such groups too, and play more tasks until the batch is full; the surplus waits.",
        params=DynamicRejectionParams,
        load=_from("algorithms.dynamic_sampling", "FillWithSignal"),
    )


@hookimpl
def rllm_workflows() -> Iterable[WorkflowPlugin[Any]]:
    yield WorkflowPlugin(
        name="single_turn_workflow",
        summary="One prompt, one answer.",
        params=AgentWorkflowParams,
        load=_from("rollout.workflows", "SingleTurnWorkflow"),
        honours=frozenset({"rllm.agent.name", "rllm.agent.agent_args"}),
    )
    yield WorkflowPlugin(
        name="multi_turn_workflow",
        summary="Turns with the environment until it is done.",
        params=AgentWorkflowParams,
        load=_from("rollout.workflows", "MultiTurnWorkflow"),
        honours=frozenset({"rllm.agent.name", "rllm.agent.agent_args", "rllm.agent.max_steps"}),
    )


@hookimpl
def rllm_agents() -> Iterable[AgentPlugin[Any]]:
    yield AgentPlugin(
        name="math_agent",
        summary="Plain chat: the model's whole reply is the action; the default.",
        params=MathAgentParams,
        load=_from("rollout.agents", "MathAgent"),
    )


@hookimpl
def rllm_datasets() -> Iterable[DatasetPlugin[Any]]:
    yield DatasetPlugin(
        name="jsonl",
        summary="Tasks from a file, one JSON object per line.",
        params=TaskFileParams,
        load=_from("rollout.task_files", "read_tasks"),
    )


@hookimpl
def rllm_trackers() -> Iterable[TrackerPlugin[Any]]:
    yield TrackerPlugin(
        name="console",
        summary="Progress in the terminal; plain lines where there is none.",
        params=NoParams,
        load=_from("tracking.console", "ConsoleTracker"),
    )
    yield TrackerPlugin(
        name="jsonl",
        summary="One JSON object per line, in a file.",
        params=JsonLinesParams,
        load=_from("tracking.jsonl", "JsonLinesTracker"),
    )


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
            params=NoParams,
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
        _from(rollout, "Generate"),
        "tasks",
        "episodes",
        "rollout.n sampling.train.*",
    )
    yield stage(
        "impute_names",
        "Name nameless trajectories.",
        _from(rollout, "ImputeNames"),
        "episodes",
        "episodes trajectory_names",
    )
    yield stage(
        "greedy_baseline",
        "Play every task greedily as well, when an estimator compares with that.",
        _from(rollout, "GreedyBaseline"),
        "tasks episodes trajectory_names",
        "episodes greedy_rewards",
        "algorithm.on_missing_reward",
    )
    yield stage(
        "compact_filter",
        "Take out attempts that ended in masked ways.",
        _from(transform, "CompactFilter"),
        "episodes",
        "episodes",
        "compact_filtering.* agent.overlong_filter mask_truncated_samples",
    )
    yield stage(
        "group",
        "Put trajectories into groups.",
        _from(transform, "Group"),
        "episodes trajectory_names",
        "trajectory_groups",
        "transform.grouping",
    )
    yield stage(
        "check_rewards",
        "Make sure every reward is a finite number.",
        _from(transform, "CheckRewards"),
        "trajectory_groups",
        "trajectory_groups rewards",
        "algorithm.on_missing_reward",
    )
    yield stage(
        "reject",
        "Choose the groups to train on now.",
        _from("pipeline.reject_stage", "Reject"),
        "trajectory_groups rewards",
        "trajectory_groups",
        "rejection_sample.enable rejection_sample.mode",
        always=True,
    )
    yield stage("build_batch", "Lay all tokens end to end.", _from(update, "BuildBatch"), "trajectory_groups", "batch")
    yield stage(
        "process",
        "Fill log-probs and values that are needed.",
        _from(update, "Process"),
        "batch",
        "batch.old_logprobs",
    )
    yield stage(
        "advantages",
        "Estimate advantages, role by role.",
        _from(update, "EstimateAdvantages"),
        "batch rewards",
        "batch.advantages",
        "algorithm.adv_estimator algorithm.estimator_map algorithm.use_precomputed_advantage "
        "algorithm.on_precomputed_mismatch stepwise_advantage.*",
    )
    yield stage(
        "update",
        "Update the weights and publish them.",
        _from(update, "Update"),
        "batch batch.old_logprobs batch.advantages",
        "weights",
        "algorithm.loss_fn algorithm.loss_map",
    )
    yield stage("log", "Send metrics to the trackers.", _from(update, "Log"), "episodes", "metrics", always=True)
