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
TARGETS = "batch.targets"


def stages_have_a_teacher(plan: RunPlan) -> Iterator[Problem]:
    """Check that the run has a teacher if one of its stages uses it."""
    for stage in plan.stages:
        if KEY in stage.plugin.config_keys and plan.teacher is None:
            yield refused(
                "no-teacher",
                KEY,
                f"Stage {stage.plugin.name!r} learns from a teacher, and this run has none.",
                "Add --teacher FOLDER, --teacher URL, or --teacher NAME (`rllm plugins list --kind teacher`).",
            )


def targets_are_trained(plan: RunPlan) -> Iterator[Problem]:
    """Check that the backend and the teacher have distributions if a stage trains on them."""
    for stage in plan.stages:
        if TARGETS in stage.plugin.writes and not plan.backend.plugin.capabilities.targets:
            yield refused(
                "backend-without-targets",
                "rllm.pipeline",
                f"Stage {stage.plugin.name!r} trains on distributions, and backend {plan.backend.name!r} trains only "
                "on sampled tokens.",
                "Choose --backend local, or distill with --objective opd.",
            )
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
