"""What of a plan will work, but perhaps not as meant."""

from __future__ import annotations

from collections.abc import Iterator

from rllm_core.contracts.grouping import MIXED_ROLES
from rllm_core.planning.plan import RunPlan
from rllm_core.planning.plan_losses import warn_other_losses
from rllm_core.rollout.options import AgentWorkflowParams


def doubts(plan: RunPlan) -> list[str]:
    """A line for each."""
    lines = [*_doubts_about_groups_of_one(plan), *_doubts_about_mixed_roles(plan), *warn_other_losses(plan)]
    if not any("weights" in stage.plugin.writes for stage in plan.stages):
        lines.append("no stage of rllm.pipeline updates the weights: the run plays and learns nothing")
    if not any("metrics" in stage.plugin.writes for stage in plan.stages):
        lines.append("no stage of rllm.pipeline sends metrics to the trackers: nothing is logged or shown")
    return lines


def _doubts_about_groups_of_one(plan: RunPlan) -> Iterator[str]:
    """By what the grouping compares; one that does not say is not doubted."""
    compares, workflow = plan.grouping.plugin.compares, plan.workflow
    one_role = isinstance(workflow.params, AgentWorkflowParams)
    differs = {
        "attempts": plan.config.rllm.rollout.n > 1,
        "tasks": plan.tasks_per_step > 1,
        "roles": not one_role,
    }
    alone = sorted({entry.plugin.name for entry in plan.estimators if entry.plugin.scope == "group"})
    if not alone or not compares or any(differs[what] for what in compares):
        return
    because = {
        "attempts": "rllm.rollout.n=1",
        "tasks": "data.train_batch_size=1",
        "roles": f"the one role of workflow {workflow.plugin.name}",
    }
    causes = [because[what] for what in because if what in compares]
    unless = "" if one_role else ", unless an attempt has several trajectories of one role"
    yield (
        f"{' and '.join(causes)} {'leave' if len(causes) > 1 else 'leaves'} estimator {' and '.join(alone)} "
        f"groups of one{unless}: there is nothing to compare an attempt with"
    )


def _doubts_about_mixed_roles(plan: RunPlan) -> Iterator[str]:
    """Choices by role say nothing about groups that hold several roles."""
    if "roles" not in plan.grouping.plugin.compares:
        return
    algorithm = plan.config.rllm.algorithm
    for key, mapping in (("estimator_map", algorithm.estimator_map), ("loss_map", algorithm.loss_map)):
        if unused := [role for role in mapping if role != MIXED_ROLES]:
            yield (
                f"rllm.algorithm.{key} names {', '.join(unused)}, and grouping {plan.grouping.plugin.name} compares "
                f"roles with each other: all its groups have the role {MIXED_ROLES}, which is what to name there"
            )
