"""The list of all checks of a plan, in the order in which they run.

To add a check, write a function in a module of this package and add a line here. Facts about one key (which plugins
read it, which other key disables it) are marks in the schema, and `rllm.planning.unused_keys` reads these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rllm.planning import (
    async_training,
    idle_checks,
    plugin_checks,
    term_checks,
)
from rllm.planning.plan import RunPlan
from rllm.planning.plan_losses import other_losses
from rllm.planning.problem import Problem

Check = Callable[[RunPlan], Iterator[Problem]]

CHECKS: tuple[Check, ...] = (
    plugin_checks.needed_keys_are_set,
    plugin_checks.backend_computes_losses,
    plugin_checks.needs_are_filled,
    plugin_checks.columns_are_trained,
    plugin_checks.steps_are_wide_enough,
    plugin_checks.reward_weights_count,
    plugin_checks.batches_are_not_multiplied_twice,
    plugin_checks.trackers_differ,
    plugin_checks.responses_end_at_texts,
    plugin_checks.prompts_are_token_ids,
    term_checks.bounds_leave_something,
    term_checks.rejections_have_bounds,
    term_checks.rollouts_are_corrected_once,
    term_checks.old_rollouts_are_weighed,
    term_checks.truncated_sampling,
    term_checks.divergence_has_a_gradient,
    term_checks.column_sections_are_needed,
    idle_checks.options_have_an_environment,
    idle_checks.step_rewards_are_read,
    idle_checks.dividing_advantages_has_a_divisor,
    idle_checks.something_is_trained,
    idle_checks.reasoning_has_later_prompt,
    idle_checks.rejection_rejects,
    idle_checks.filtering_masks,
    idle_checks.checkpoints_are_many,
    async_training.check_staleness_is_integer,
    async_training.staleness_is_within_the_run,
    async_training.batches_are_generated_ahead,
    async_training.rollouts_may_overlap,
    async_training.stages_may_run_ahead,
    async_training.losses_have_a_ratio,
    plugin_checks.groups_of_one,
    plugin_checks.choices_by_role,
    plugin_checks.stages_learn_and_log,
    plugin_checks.stages_have_a_teacher,
    other_losses,
)
"""Functions that take a plan and yield its problems."""


def find_problems(plan: RunPlan) -> Iterator[Problem]:
    """Yield the problems that all checks and the checks of the stages find."""
    for check in CHECKS:
        yield from check(plan)
    for stage in plan.stages:
        yield from stage.plugin.check_plan(plan, stage.params)
