"""Rejection modes: which groups of a step are trained on, which wait, and which are dropped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from rllm_core.data.types import TrajectoryGroup


@dataclass(frozen=True, kw_only=True)
class RejectionResult:
    """What becomes of the groups offered and of those that waited.

    Each of them, the very object, is in exactly one of `train`, `waiting` and `dropped`. The stage that applies the
    verdict checks it. After a resume a waiting group is recognised by its id, as the mode has made it anew.
    """

    train: list[TrajectoryGroup]
    """Groups to train on now, including those that waited since earlier steps."""
    waiting: Sequence[TrajectoryGroup] = ()
    """All groups that the mode keeps for a later step, those of earlier steps included."""
    dropped: Mapping[str, Sequence[TrajectoryGroup]] = field(default_factory=dict)
    """Groups that are dropped, by reason, such as ``{"all_solved": [group]}``."""
    more: bool = False
    """Whether further tasks are to be played in this same step, and their groups offered; `train` is then empty."""


class RejectionMode(Protocol):
    """May keep groups between steps; whatever it keeps must be in `state_dict`, so that a resumed run is the same.

    It is asked once per step, and again in that step for as long as its verdict asks for more; with an empty list when
    a step brought no groups. A mode that asks for more must bound how often.
    """

    def __call__(self, groups: list[TrajectoryGroup], /) -> RejectionResult: ...

    def state_dict(self) -> dict[str, Any]:
        """Everything kept between steps, as JSON data (see ``rllm_core.data.codec`` for groups)."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class RejectionPlugin(Plugin[ParamsT]):
    """Offers a rejection mode. Chosen by ``--rejection`` or ``rllm.rejection_sample.mode``.

    `load` returns a factory that takes the options and makes the mode for one run. The option of a mode that fills
    batches of tasks is marked with `Means.TASKS_PER_BATCH` of `rllm_core.schema.section`.
    """

    kind: ClassVar[str] = "rejection"

    load: Callable[[], Callable[[Any], RejectionMode]]
    updates_waited: int = 0
    """Most updates for which a group waits before it is trained on. Asynchronous training plays that many rounds fewer
    ahead. A mode that keeps a group longer ends such a run."""
