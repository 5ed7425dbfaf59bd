"""Trajectory grouping: which trajectories are compared with each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from typing import Any

    from rllm_core.data.types import Episode, TrajectoryGroup

Compared = Literal["rollouts", "tasks", "roles"]
MIXED_ROLES = "all_groups"
"""`TrajectoryGroup.group_role` of groups that hold several roles: the one they have in `estimator_map` and metrics."""


class Grouping(Protocol):
    """Puts every trajectory into one group. Trajectories are passed on by reference, never copied."""

    def __call__(self, episodes: Sequence[Episode], params: Any, /) -> list[TrajectoryGroup]: ...


@dataclass(frozen=True, kw_only=True)
class GroupingPlugin(Plugin[ParamsT]):
    """Offers a way of grouping. Chosen by ``--grouping`` or ``rllm.transform.grouping``."""

    kind: ClassVar[str] = "grouping"

    load: Callable[[], Grouping]
    compares: frozenset[Compared] = frozenset()
    """What the trajectories of one group may differ in: the attempt at a task, the task, the role. With ``roles`` all
    its groups have the role `MIXED_ROLES`. Runs whose groups could only be of one are warned of by this; empty: not
    said, and nothing is checked."""
