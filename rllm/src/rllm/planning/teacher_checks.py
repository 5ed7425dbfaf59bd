"""Check of runs in which a stage learns from the run's teacher."""

from __future__ import annotations

from collections.abc import Iterator

from rllm.planning.plan import RunPlan
from rllm.planning.problem import Problem, refused

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
