"""Trajectory grouping: the rule that decides which trajectories are compared with each other."""

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
"""The `TrajectoryGroup.group_role` of groups with several roles. `estimator_map` and metrics use this name for them."""


class Grouping(Protocol):
    """Puts every trajectory into exactly one group. The groups contain the trajectories themselves, not copies."""

    def __call__(self, episodes: Sequence[Episode], params: Any, /) -> list[TrajectoryGroup]: ...


@dataclass(frozen=True, kw_only=True)
class GroupingPlugin(Plugin[ParamsT]):
    """A plugin spec that offers a grouping. Users choose it with ``--grouping`` or ``rllm.transform.grouping``.

    A grouping takes episodes and returns groups of trajectories whose rewards are compared::

        from rllm_core.contracts import GroupingPlugin
        from rllm_core.plugins import hookimpl

        def load_one_group():
            from rllm_core.data.types import TrajectoryGroup        # imported only here, because it needs numpy

            def one_group(episodes, params):
                everything = [trajectory for episode in episodes for trajectory in episode.trajectories]
                return [TrajectoryGroup(group_id="batch", trajectories=everything)]

            return one_group

        @hookimpl
        def rllm_groupings():
            yield GroupingPlugin(
                name="one_group", summary="The whole batch is one group.", load=load_one_group
            )
    """

    kind: ClassVar[str] = "grouping"

    load: Callable[[], Grouping]
    compares: frozenset[Compared] = frozenset()
    """The properties in which the trajectories of one group may differ: the rollout, the task, the role. With
    ``roles``, all its groups have the role `MIXED_ROLES`. rllm uses this to warn about runs in which every group would
    contain a single trajectory. If empty, rllm does not check this."""
