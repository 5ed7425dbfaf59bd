"""The core's own plugins, registered through the same hooks as other plugins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts.agent import AgentPlugin
from rllm_core.contracts.estimator import EstimatorPlugin
from rllm_core.contracts.grouping import GroupingPlugin
from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.objective import ObjectivePlugin
from rllm_core.contracts.rejection import RejectionPlugin
from rllm_core.contracts.renderer import RendererPlugin
from rllm_core.contracts.stage import StagePlugin
from rllm_core.contracts.workflow import AGENT_KEYS, TURN_KEYS, WorkflowPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins.specs import hookimpl


@hookimpl
def rllm_estimators() -> Iterable[EstimatorPlugin[Any]]:
    yield EstimatorPlugin(
        name="grpo",
        summary="(reward - group mean) / group std. The default.",
        load_params=load_from("rllm_core.algorithms.options", "GrpoParams"),
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
        load_params=load_from("rllm_core.algorithms.options", "ReinforcePlusPlusBaselineParams"),
        load=load_from("rllm_core.algorithms.advantage", "reinforce_plus_plus_baseline"),
        scope="role",
        default_loss="importance_sampling",
    )
    yield EstimatorPlugin(
        name="rloo",
        summary="Reward minus the mean of the group's other trajectories.",
        load_params=load_from("rllm_core.algorithms.options", "RlooParams"),
        load=load_from("rllm_core.algorithms.advantage", "rloo"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        default_loss="importance_sampling",
    )


@hookimpl
def rllm_losses() -> Iterable[LossPlugin[Any]]:
    yield LossPlugin(
        name="ppo",
        summary="Clipped importance ratio.",
        load_params=load_from("rllm_core.algorithms.options", "PpoParams"),
        load=load_from("rllm_core.updates.losses", "ppo"),
        load_clipped=load_from("rllm_core.updates.losses", "ppo_clipped"),
    )
    yield LossPlugin(
        name="importance_sampling",
        summary="Importance ratio times advantage, no clipping.",
        load=load_from("rllm_core.updates.losses", "importance_sampling"),
    )
    yield LossPlugin(
        name="reinforce",
        summary="Log-prob times advantage, on-policy.",
        load=load_from("rllm_core.updates.losses", "reinforce"),
        has_ratio=False,
    )


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
        load_params=load_from("rllm_core.algorithms.options", "EpisodeRejectionParams"),
        load=load_from("rllm_core.algorithms.rejection", "WaitForPartialSolves"),
    )
    yield RejectionPlugin(
        name="group",
        summary="Drop groups that are too small or whose rewards are all equal.",
        load_params=load_from("rllm_core.algorithms.options", "GroupRejectionParams"),
        load=load_from("rllm_core.algorithms.rejection", "DropWithoutSignal"),
    )
    yield RejectionPlugin(
        name="dynamic",
        summary="Like `group`, and generate more tasks until the batch is full. Surplus groups wait.",
        load_params=load_from("rllm_core.algorithms.options", "DynamicRejectionParams"),
        load=load_from("rllm_core.algorithms.rejection", "FillWithSignal"),
        updates_waited=1,
    )


@hookimpl
def rllm_workflows() -> Iterable[WorkflowPlugin[Any]]:
    yield WorkflowPlugin(
        name="single_turn_workflow",
        summary="One prompt and one response.",
        load_params=load_from("rllm_core.rollout.options", "AgentWorkflowParams"),
        load=load_from("rllm_core.rollout.workflows", "SingleTurnWorkflow"),
        one_role=True,
        needs_environment=True,
        config_keys=AGENT_KEYS,
    )
    yield WorkflowPlugin(
        name="multi_turn_workflow",
        summary="Several turns with the environment until it is done.",
        load_params=load_from("rllm_core.rollout.options", "AgentWorkflowParams"),
        load=load_from("rllm_core.rollout.workflows", "MultiTurnWorkflow"),
        one_role=True,
        needs_environment=True,
        config_keys=TURN_KEYS,
    )


@hookimpl
def rllm_agents() -> Iterable[AgentPlugin[Any]]:
    yield AgentPlugin(
        name="math_agent",
        summary="Plain chat: the model's whole response is the action. The default.",
        load_params=load_from("rllm_core.rollout.options", "MathAgentParams"),
        load=load_from("rllm_core.rollout.workflows", "MathAgent"),
    )


@hookimpl
def rllm_renderers() -> Iterable[RendererPlugin[Any]]:
    yield RendererPlugin(
        name="template",
        summary="The chat template of the model's tokenizer. The default.",
        load_params=load_from("rllm_core.rollout.options", "TemplateParams"),
        load=load_from("rllm_core.rollout.template_renderer", "template_renderer"),
    )


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
        load=load_from("rllm_core.pipeline.transform_stages", "Reject"),
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
