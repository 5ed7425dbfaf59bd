"""Episodes with a few rewards and no tokens, for tests of metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rllm_core.data.types import Episode, TerminationReason, Trajectory


def make_episode(
    task: str,
    index: int = 0,
    *,
    correct: bool = False,
    rewards: Sequence[float | None] = (),
    reason: TerminationReason = TerminationReason.ENV_DONE,
    source: str = "default",
    metrics: Mapping[str, float] | None = None,
) -> Episode:
    """Make an episode with one trajectory per reward."""
    return Episode(
        id=f"{task}:{index}",
        trajectories=[Trajectory("agent", reward=reward) for reward in rewards],
        is_correct=correct,
        termination_reason=reason,
        data_source=source,
        metrics=dict(metrics or {}),
    )
