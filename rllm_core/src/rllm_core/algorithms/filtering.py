"""Compact filtering: attempts that ended in certain ways are taken out of the gradient, and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rllm_core.config.schema import CompactFilteringSection
from rllm_core.types import Episode, TerminationReason


def masked_reasons(settings: CompactFilteringSection) -> frozenset[TerminationReason]:
    """The ways of ending that `settings` masks; empty when filtering is off."""
    if not settings.enable:
        return frozenset()
    return frozenset(reason for reason in TerminationReason if getattr(settings, f"mask_{reason.value}"))


def compact_filter(
    episodes: Sequence[Episode], masked: frozenset[TerminationReason]
) -> tuple[list[Episode], Counter[str]]:
    """Episodes that stay, and how many left by reason."""
    kept = [episode for episode in episodes if episode.termination_reason not in masked]
    dropped = Counter(e.termination_reason.value for e in episodes if e.termination_reason in masked)
    return kept, dropped
