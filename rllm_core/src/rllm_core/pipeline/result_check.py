"""Whether a rejection mode's verdict names every group, and each in one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rllm_core.contracts.rejection import RejectionResult
from rllm_core.data.types import TrajectoryGroup


def misplaced(result: RejectionResult, groups: Sequence[TrajectoryGroup]) -> str:
    """What is wrong with the account, as the end of a sentence about the mode; empty when nothing is.

    Args:
        groups: those offered, and those that waited. They are told apart by identity: ids may come twice.
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


def recognised(
    result: RejectionResult, offered: Sequence[TrajectoryGroup], ids: Sequence[str]
) -> list[TrajectoryGroup]:
    """The groups of these ids, which waited when a checkpoint was made, as the verdict names them.

    A resumed mode has made them anew, so that only their ids tell them. For an id that the verdict does not name, a
    group without trajectories stands in.
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
