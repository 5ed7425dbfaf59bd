"""Check that a rejection mode's result contains every group exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rllm_core.contracts.rejection import RejectionResult
from rllm_core.data.types import TrajectoryGroup


def misplaced(result: RejectionResult, groups: Sequence[TrajectoryGroup]) -> str:
    """Return the problem of a result, as the end of a sentence about the mode. Empty if it has none.

    Args:
        groups: offered groups and waiting groups. They are compared by identity, because two groups may have the same
            id.
    """
    known = {id(group) for group in groups}
    places: dict[int, str] = {}
    for place, group in _named(result):
        if id(group) not in known:
            return f"names group {group.group_id!r} {place}, which was neither offered nor waiting"
        if id(group) in places:
            return f"names group {group.group_id!r} twice: {places[id(group)]} and {place}"
        places[id(group)] = place
    left_out = (group.group_id for group in groups if id(group) not in places)
    return next((f"leaves out group {group_id!r}" for group_id in left_out), "")


def recognized(
    result: RejectionResult, offered: Sequence[TrajectoryGroup], ids: Sequence[str]
) -> list[TrajectoryGroup]:
    """Return the groups of the result that were waiting when the checkpoint was made, given their ids.

    A resumed mode has created new objects for them, so only their ids identify them. For an id that the result does not
    contain, the list has a group without trajectories.
    """
    missing, known, found = Counter(ids), {id(group) for group in offered}, []
    for _, group in _named(result):
        if id(group) not in known and missing[group.group_id]:
            missing[group.group_id] -= 1
            known.add(id(group))
            found.append(group)
    return [*found, *(TrajectoryGroup(group_id=group_id, trajectories=[]) for group_id in missing.elements())]


def _named(result: RejectionResult) -> Iterator[tuple[str, TrajectoryGroup]]:
    yield from (("to train on", group) for group in result.train)
    yield from (("as waiting", group) for group in result.waiting)
    for reason, groups in result.dropped.items():
        yield from ((f"as dropped for {reason!r}", group) for group in groups)
