"""Checks of distillation, in which a stage learns from the run's teacher."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rllm.distillation.options import ServerParams, TopkKlParams
from rllm.planning.plan import RunPlan
from rllm.planning.problem import Problem, refused

if TYPE_CHECKING:
    from rllm.distillation.by_source import TeacherChoice

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


def topk_teachers_have_distributions(plan: RunPlan) -> Iterator[Problem]:
    """Check that the teachers of stage `topk_kl` return distributions."""
    for stage in plan.stages:
        if isinstance(stage.params, TopkKlParams) and plan.teacher is not None:
            yield from _teachers_have_distributions(plan.teacher, stage.params)


def _teachers_have_distributions(teacher: TeacherChoice, params: TopkKlParams) -> Iterator[Problem]:
    from rllm.distillation.by_source import parts

    for part in parts(teacher):
        if not part.plugin.distributions:
            yield refused(
                "teacher-without-distributions",
                KEY,
                f"Teacher {part.plugin.name!r} scores only the sampled tokens, and stage topk_kl needs distributions.",
                "Choose teacher `model` or `server`, or distill with --objective opd.",
            )
        if params.k is None and isinstance(part.params, ServerParams):
            yield refused(
                "teacher-without-vocabulary",
                KEY,
                "Option k of stage topk_kl is null, and a server returns only its likeliest tokens.",
                "Set option k of stage topk_kl to a number, such as 20.",
            )
