"""What a run's `rllm.pipeline` means for a replay, which has the core's own stages only."""

from __future__ import annotations

from rllm_core.config.algorithm_sections import PipelineSection
from rllm_core.config.section import Choice
from rllm_core.pipeline.graph import BUILT_IN

OPTIONAL = frozenset({"compact_filter"})
"""Stages a replay can do without. The others make what estimators need."""


def strange_stages(settings: PipelineSection) -> tuple[str, ...]:
    """Stages of the run that are not the core's, by name."""
    placed = [*(settings.stages or ()), *(edit["stage"] for edit in settings.insert), *settings.replace.values()]
    return tuple(name for name in dict.fromkeys(map(_name, placed)) if name not in BUILT_IN)


def left_out_stages(settings: PipelineSection) -> frozenset[str]:
    """Optional stages of the core that the run did not have."""
    listed = BUILT_IN if settings.stages is None else tuple(map(_name, settings.stages))
    had = set(listed) - set(settings.remove) - set(settings.replace)
    return OPTIONAL - had


def _name(choice: Choice) -> str:
    name = choice if isinstance(choice, str) else str(choice.get("name", ""))
    return name.removeprefix("rllm-core/")
