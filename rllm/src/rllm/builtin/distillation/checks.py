"""Checks of the stage `topk_kl`."""

from __future__ import annotations

from collections.abc import Iterator

from rllm.builtin.distillation.by_source import parts
from rllm.builtin.distillation.options import ServerParams, TopkKlParams
from rllm.planning.plan import RunPlan
from rllm.planning.problem import Problem, refused

KEY = "rllm.teacher"


def check_topk_teachers(plan: RunPlan, params: TopkKlParams) -> Iterator[Problem]:
    """Check that the teachers return distributions."""
    for part in () if plan.teacher is None else parts(plan.teacher):
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
