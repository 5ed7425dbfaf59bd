"""All checks of a plan.

To add a check, write a function in a module of this package and add it to the module's `CHECKS`. Facts about one key
(which plugins read it, which other key disables it) are marks in the schema, which `rllm.planning.unused_keys` reads.
"""

from __future__ import annotations

from collections.abc import Iterator

from rllm.planning import async_training, idle_checks, plugin_checks, term_checks
from rllm.planning.plan import RunPlan
from rllm.planning.plan_losses import other_losses
from rllm.planning.problem import Problem


def find_problems(plan: RunPlan) -> Iterator[Problem]:
    """Yield the problems that all checks and the checks of the stages find."""
    for module in (plugin_checks, term_checks, idle_checks, async_training):
        yield from module.find_problems(plan)
    yield from other_losses(plan)
    for stage in plan.stages:
        yield from stage.plugin.check_plan(plan, stage.params)
