"""Warnings about groups and stages that work, but perhaps not as intended."""

from __future__ import annotations

from collections.abc import Iterator

from rllm.planning.plan import RunPlan
from rllm.planning.problem import Problem, warning
from rllm_core.contracts.grouping import MIXED_ROLES

GROUPING, STAGES = "rllm.transform.grouping", "rllm.pipeline"


def groups_of_one(plan: RunPlan) -> Iterator[Problem]:
    """Warn if every group contains a single trajectory. Skip groupings that do not declare their comparison."""
    if not plan.estimates:
        return
    compares, workflow = plan.grouping.plugin.compares, plan.workflow.plugin
    differs = {
        "rollouts": plan.config.rllm.rollout.n > 1 or plan.off_policy,
        "tasks": plan.tasks_per_step > 1,
        "roles": not workflow.one_role,
    }
    estimators = sorted({entry.plugin.name for entry in plan.estimators if entry.plugin.scope == "group"})
    if not estimators or not compares or any(differs[what] for what in compares):
        return
    because = {
        "rollouts": "rllm.rollout.n=1",
        "tasks": "data.train_batch_size=1",
        "roles": f"the one role of workflow {workflow.name}",
    }
    causes = [because[what] for what in because if what in compares]
    unless = "" if workflow.one_role else ", unless a rollout has several trajectories of one role"
    yield warning(
        "groups-of-one",
        GROUPING,
        f"{' and '.join(causes)} {'leave' if len(causes) > 1 else 'leaves'} estimator {' and '.join(estimators)} "
        f"groups of one{unless}: a rollout has nothing to be compared with",
    )


def choices_by_role(plan: RunPlan) -> Iterator[Problem]:
    """Warn about choices by role if all groups contain several roles: such choices do not apply then."""
    if "roles" not in plan.grouping.plugin.compares:
        return
    algorithm = plan.config.rllm.algorithm
    for name, mapping in (("estimator_map", algorithm.estimator_map), ("loss_map", algorithm.loss_map)):
        if others := [role for role in mapping if role != MIXED_ROLES]:
            key = f"rllm.algorithm.{name}"
            yield warning(
                "unknown-role",
                key,
                f"{key} lists {', '.join(others)}, and grouping {plan.grouping.plugin.name} compares roles with each "
                f"other: all its groups have the role {MIXED_ROLES}. Use that role",
            )


def stages_learn_and_log(plan: RunPlan) -> Iterator[Problem]:
    """Warn if no stage updates the weights, or no stage sends metrics to the trackers."""
    missing = {
        "weights": "no stage of rllm.pipeline updates the weights: the run generates rollouts and learns nothing",
        "metrics": "no stage of rllm.pipeline sends metrics to the trackers: nothing is logged or shown",
    }
    written = frozenset[str]().union(*(stage.plugin.writes for stage in plan.stages))
    yield from (warning("stage-order", STAGES, line) for what, line in missing.items() if what not in written)
