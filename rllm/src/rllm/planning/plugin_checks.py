"""Check that the plugins of a plan work together: losses, needs, scopes, groups, teacher, trackers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from rllm.planning.plan import RunPlan
from rllm.planning.problem import Problem, refused, warning
from rllm_core.contracts.estimator import ALWAYS_FILLED, FILLED_BY_STAGES
from rllm_core.contracts.grouping import MIXED_ROLES
from rllm_core.plugins.discovery import CORE, IN_PROCESS, find_home_package
from rllm_core.schema.section import OptionRole, find_options

OBSERVATIONS = "batch.observation_weights"
TARGETS = "batch.targets"
ADVANTAGES = "batch.advantages"
REWARD = "rllm.reward"
LOSS, ESTIMATOR = "rllm.algorithm.loss_fn", "rllm.algorithm.adv_estimator"


def needed_keys_are_set(plan: RunPlan) -> Iterator[Problem]:
    """Check that the keys are set that the environment needs. A run without estimators needs no rewards."""
    environment = plan.environment
    given = {REWARD} if plan.workflow.plugin.gives_rewards or not plan.estimates else set()
    for key, example in environment.plugin.needs_keys.items() if environment else ():
        if environment and key not in given and not plan.composed.value(key):
            text = f"Environment {environment.plugin.name!r} needs `{key}`, and it is not set."
            hint = f"Add {key}={example}."
            if key == REWARD:
                hint = f"Add --reward {example.strip('[]')}, or your own function: --reward FILE.py:FUNCTION."
            yield refused("missing-key", key, text, hint)


def backend_computes_losses(plan: RunPlan) -> Iterator[Problem]:
    """Check that the backend computes the losses. A backend that only samples needs none."""
    backend, can = plan.backend, plan.backend.plugin.capabilities
    for loss in plan.losses if can.trains else ():
        name, entry = loss.plugin.name, loss.registered
        if can.installed_losses_only and entry.distribution == IN_PROCESS:
            yield refused(
                "plugin-of-other-program",
                LOSS,
                f"Loss {name!r} was registered by this program, and backend {backend.name!r} computes losses in other "
                "processes, which see only installed plugins.",
                "Put it into its own package: `rllm plugins new NAME --kind loss`, and install that package.",
            )
        # A bare "ppo" means the well-known loss that a backend implements, not another package's loss of that name.
        well_known = entry.distribution in (CORE, backend.distribution, find_home_package("loss", entry.name))
        if not can.custom_losses and (entry.name if well_known else entry.qualified_name) not in can.losses:
            yield refused(
                "loss-not-supported",
                LOSS,
                f"Backend {backend.name!r} cannot compute loss {name!r}.",
                f"Its losses: {', '.join(sorted(can.losses)) or 'none'}. Set {LOSS} to one of these.",
            )


def needs_are_filled(plan: RunPlan) -> Iterator[Problem]:
    """Check that stages before the advantages, or the backend, fill every input of estimators and losses."""
    backend = plan.backend
    before = list(takewhile(lambda stage: ADVANTAGES not in stage.plugin.writes, plan.stages))
    for chosen in (*plan.estimators, *plan.losses) if backend.plugin.capabilities.trains else ():
        kind, who = chosen.plugin.kind, f"{chosen.plugin.kind.capitalize()} {chosen.plugin.name!r}"
        key = ESTIMATOR if kind == "estimator" else LOSS
        of_stages = chosen.plugin.needs & FILLED_BY_STAGES
        if unwritten := of_stages.difference(*(stage.plugin.writes for stage in before)):
            yield refused(
                "stage-input-missing",
                key,
                f"{who} needs {', '.join(sorted(unwritten))}, and no stage before the advantages writes that.",
                "The stage greedy_baseline writes greedy_rewards; put it after impute_names.",
            )
        if missing := chosen.plugin.needs - backend.plugin.capabilities.columns - ALWAYS_FILLED - of_stages:
            yield refused(
                "missing-estimator-input",
                key,
                f"{who} needs {', '.join(sorted(missing))}; backend {backend.name!r} cannot fill that.",
                f"Choose another {kind} or another backend.",
            )


def columns_are_trained(plan: RunPlan) -> Iterator[Problem]:
    """Check that the backend trains on observations and on distributions if a stage writes columns for them."""
    name, can = plan.backend.name, plan.backend.plugin.capabilities
    for stage in plan.stages:
        if OBSERVATIONS in stage.plugin.writes and not can.observations:
            yield refused(
                "backend-without-observations",
                "rllm.pipeline",
                f"Stage {stage.plugin.name!r} trains on observations, and backend {name!r} trains only on "
                "sampled tokens.",
                "Choose --backend local, tinker or verl, or a different --objective.",
            )
        if TARGETS in stage.plugin.writes and not can.targets:
            yield refused(
                "backend-without-targets",
                "rllm.pipeline",
                f"Stage {stage.plugin.name!r} trains on distributions, and backend {name!r} trains only on "
                "sampled tokens.",
                "Choose --backend local, or a different --objective.",
            )


def steps_are_wide_enough(plan: RunPlan) -> Iterator[Problem]:
    """Check the number of tasks that the settings give a step."""
    return too_few_tasks(plan, plan.tasks_per_step)


def too_few_tasks(plan: RunPlan, tasks: int) -> Iterator[Problem]:
    """With one task, statistics over all tasks of a step equal the statistics of its single group."""
    wide = [entry.plugin for entry in plan.estimators if entry.plugin.scope in ("role", "batch")]
    if wide and tasks == 1:
        yield refused(
            "too-few-tasks",
            "data.train_batch_size",
            f"Estimator {wide[0].name!r} has scope {wide[0].scope!r}: it compares all tasks of a step, and a step "
            "of this run has one.",
            "Give the run two or more tasks, set data.train_batch_size to 2 or more, or choose an estimator with scope "
            "group, such as grpo.",
        )


def reward_weights_count(plan: RunPlan) -> Iterator[Problem]:
    """Reject reward weights other than 1 and -1 if the estimator rescales every reward."""
    rescaling = [chosen.plugin.name for chosen in plan.estimators if chosen.plugin.rescales_components]
    lost = {entry.chosen.plugin.name: entry.weight for entry in plan.rewards if abs(entry.weight) not in (0.0, 1.0)}
    if rescaling and lost:
        said = ", ".join(f"{weight:g} of reward {name!r}" for name, weight in lost.items())
        weights = ", ".join(f"{name}: {weight:g}" for name, weight in lost.items())
        yield refused(
            "unused-key",
            "rllm.reward",
            f"Estimator {rescaling[0]!r} rescales every reward, so the weight {said} has no effect.",
            f"Remove it from rllm.reward, and choose {{name: {rescaling[0]}, weights: {{{weights}}}}} as estimator.",
        )


def batches_are_not_multiplied_twice(plan: RunPlan) -> Iterator[Problem]:
    """Reject a multiplier with a mode that fills batches itself: the surplus of tasks would grow with every step."""
    multiplier, mode = plan.config.rllm.rejection_sample.multiplier, plan.rejection
    if multiplier > 1 and any(find_options(type(mode.params), OptionRole.TASKS_PER_BATCH)):
        key = "rllm.rejection_sample.multiplier"
        yield refused(
            "conflicting-keys",
            key,
            f"`{key}` is {multiplier}, and mode {mode.plugin.name} draws as many tasks as it needs.",
            f"Remove {key}, or choose mode group.",
        )


def trackers_differ(plan: RunPlan) -> Iterator[Problem]:
    """Reject a tracker chosen twice with the same options: it would write everything twice into one file."""
    entries = [(chosen.registered.qualified_name, chosen.params) for chosen in plan.trackers]
    for index, chosen in enumerate(plan.trackers):
        if entries[index] in entries[:index]:
            text = f"rllm.trainer.logger[{index}]: {chosen.plugin.name} is chosen already, with the same options."
            remedy = "Remove one of the two, or give them different options."
            yield refused("duplicate-choice", "rllm.trainer.logger", text, remedy)


def responses_end_at_texts(plan: RunPlan) -> Iterator[Problem]:
    """Check that the engine can stop at strings if the workflow needs it."""
    if plan.workflow.plugin.stop_texts and not plan.stop_texts:
        engine = f"backend {plan.backend.name!r}" if plan.engine is None else f"engine {plan.engine.plugin.name!r}"
        yield refused(
            "stop-not-supported",
            "rllm.workflow.name",
            f"Workflow {plan.workflow.plugin.name!r} needs responses that stop at strings, and {engine} cannot do so.",
            "Choose another workflow, or a backend with stop_texts: see `rllm plugins info backend NAME`.",
        )


def prompts_are_token_ids(plan: RunPlan) -> Iterator[Problem]:
    """Check that the backend has token ids if the workflow needs them."""
    if plan.workflow.plugin.renders_elsewhere and not plan.backend.plugin.capabilities.token_ids:
        yield refused(
            "no-token-ids",
            "rllm.workflow.name",
            f"Workflow {plan.workflow.plugin.name!r} needs token ids, and backend {plan.backend.name!r} returns only "
            "text.",
            "Use a model on this machine, such as --backend local --model DIRECTORY, or run the agent itself with the "
            "server's address.",
        )


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


KEY = "rllm.teacher"


def stages_have_a_teacher(plan: RunPlan) -> Iterator[Problem]:
    """Check that the run has a teacher if one of its stages uses it."""
    for stage in plan.stages:
        if KEY in stage.plugin.config_keys and plan.teacher is None:
            yield refused(
                "no-teacher",
                KEY,
                f"Stage {stage.plugin.name!r} learns from a teacher, and this run has none.",
                "Add --teacher DIRECTORY, --teacher URL, or --teacher NAME (`rllm plugins list --kind teacher`).",
            )


CHECKS = (
    needed_keys_are_set,
    backend_computes_losses,
    needs_are_filled,
    columns_are_trained,
    steps_are_wide_enough,
    reward_weights_count,
    batches_are_not_multiplied_twice,
    trackers_differ,
    responses_end_at_texts,
    prompts_are_token_ids,
    groups_of_one,
    choices_by_role,
    stages_learn_and_log,
    stages_have_a_teacher,
)
"""Functions that take a plan and yield its problems, in the order in which they run."""


def find_problems(plan: RunPlan) -> Iterator[Problem]:
    """Yield the problems that the checks of this module find."""
    for check in CHECKS:
        yield from check(plan)
