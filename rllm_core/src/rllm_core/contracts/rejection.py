"""Rejection modes: they decide which groups of a step to train on, keep for later or drop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from rllm_core.data.types import TrajectoryGroup


@dataclass(frozen=True, kw_only=True)
class RejectionResult:
    """The decision about the new groups and the waiting groups.

    Each group must be in exactly one of `train`, `waiting` and `dropped`, as the same object. The stage that applies
    the decision checks this. After a resume, the mode has restored its waiting groups, so they are identified by id.
    """

    train: list[TrajectoryGroup]
    """Groups to train on now, including groups that waited since earlier steps."""
    waiting: Sequence[TrajectoryGroup] = ()
    """All groups that the mode keeps for a later step, including groups from earlier steps."""
    dropped: Mapping[str, Sequence[TrajectoryGroup]] = field(default_factory=dict)
    """Dropped groups by reason, such as ``{"all_solved": [group]}``."""
    more: bool = False
    """True to generate rollouts for more tasks in this step and pass their groups to the mode. `train` must then be
    empty."""


class RejectionMode(Protocol):
    """A rule that decides which groups are trained on.

    A mode runs before the trainer computes log-probs. To use log-probs, write an estimator with `needs`, and give the
    trajectories that should not count the advantage 0.

    A mode may keep groups between steps. Everything that it keeps must be in `state_dict`, so that a resumed run is
    identical. The mode is called once per step, and again in the same step after each result with `more`. The list is
    empty if a step produced no groups. A mode must limit how often it returns `more`.
    """

    def __call__(self, groups: list[TrajectoryGroup], /) -> RejectionResult: ...

    def state_dict(self) -> dict[str, Any]:
        """Return the data that the mode keeps between steps, as JSON. Use ``rllm_core.data.codec`` for groups."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class RejectionPlugin(Plugin[ParamsT]):
    """A plugin spec that offers a rejection mode. Users choose it with ``--rejection`` or
    ``rllm.rejection_sample.mode``.

    `load` returns a factory that takes the options and makes the mode for one run. If a mode fills batches of tasks,
    mark the option for the batch size with `OptionRole.TASKS_PER_BATCH` of `rllm_core.schema.section`.

    A mode takes the groups of one step and decides which to train on, which to keep for later and which to drop::

        from rllm_core.contracts import RejectionPlugin, RejectionResult
        from rllm_core.plugins import hookimpl

        class DropSingles:
            def __init__(self, params):
                pass

            def __call__(self, groups):
                train = [group for group in groups if len(group.trajectories) > 1]
                singles = [group for group in groups if len(group.trajectories) <= 1]
                return RejectionResult(train=train, dropped={"single": singles})

            def state_dict(self):
                return {}

            def load_state_dict(self, state): ...

        @hookimpl
        def rllm_rejections():
            yield RejectionPlugin(
                name="drop_singles", summary="Drop groups of one.", load=lambda: DropSingles
            )
    """

    kind: ClassVar[str] = "rejection"

    load: Callable[[], Callable[[Any], RejectionMode]]
    updates_waited: int = 0
    """Maximum number of updates that a group waits before it is trained on. Asynchronous training generates this many
    fewer batches ahead. If a mode keeps a group longer in such a run, the run fails."""
