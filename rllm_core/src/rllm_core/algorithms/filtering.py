"""Masking of rollouts by termination reason, and of cut-off responses. Both are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from rllm_core.data.types import Episode, TerminationReason, Trajectory
from rllm_core.schema.run_config import RllmSection

OVERLONG = frozenset(
    {
        TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED,
        TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED,
        TerminationReason.MAX_TURNS_EXCEEDED,
        TerminationReason.TIMEOUT,
    }
)
"""The termination reasons that `rllm.agent.overlong_filter` masks: limits of tokens, turns or time."""


def masked_reasons(settings: RllmSection) -> frozenset[TerminationReason]:
    """Return the termination reasons that `compact_filtering` or `agent.overlong_filter` mask. Empty if both are
    off."""
    masks = settings.compact_filtering
    masked = {reason for reason in TerminationReason if masks.enable and getattr(masks, f"mask_{reason.value}")}
    return frozenset(masked | (OVERLONG if settings.agent.overlong_filter else set()))


def compact_filter(
    episodes: Sequence[Episode], masked: frozenset[TerminationReason]
) -> tuple[list[Episode], Counter[str]]:
    """Return the remaining episodes, and the number of masked episodes by reason."""
    kept = [episode for episode in episodes if episode.termination_reason not in masked]
    dropped = Counter(e.termination_reason.value for e in episodes if e.termination_reason in masked)
    return kept, dropped


def drop_truncated(episodes: Sequence[Episode]) -> tuple[list[Episode], int]:
    """Return episodes without trajectories whose last response was cut off, and the number of removed trajectories.

    An episode that loses trajectories is replaced by a copy. An episode that loses all trajectories is removed.
    """
    kept = []
    for episode in episodes:
        whole = [trajectory for trajectory in episode.trajectories if not is_truncated(trajectory)]
        if whole:
            lost_none = len(whole) == len(episode.trajectories)
            kept.append(episode if lost_none else replace(episode, trajectories=whole))
    before, after = (sum(len(episode.trajectories) for episode in some) for some in (episodes, kept))
    return kept, before - after


def is_truncated(trajectory: Trajectory) -> bool:
    """Return True if the last response was cut off."""
    return bool(trajectory.steps) and trajectory.steps[-1].info.get("finish_reason") == "length"
