"""The order in which the calls of a trajectory are laid out: lineage by lineage, whatever the order of arrival."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from rllm_gateway.attempt_sampler import SampledCall
from rllm_gateway.session import TracedCall


def roots_of(calls: Sequence[TracedCall]) -> dict[str, TracedCall]:
    """The call that each call's lineage begins with, by the call's id."""
    known = {call.id: call for call in calls}
    roots: dict[str, TracedCall] = {}
    for call in calls:
        parent = call.parent if call.parent in known else None
        # Parents come before what continues them.
        roots[call.id] = call if parent is None else roots[parent]
    return roots


def in_lineages(calls: Sequence[TracedCall], sampled: Mapping[str, SampledCall]) -> list[TracedCall]:
    """The calls, each behind the one that it continues as often as possible.

    Calls of parallel agents arrive in any order: they are ordered by what was sampled. The first call of all stays
    first.
    """
    known = {call.id for call in calls}
    children: defaultdict[str | None, list[TracedCall]] = defaultdict(list)
    for call in calls:
        children[call.parent if call.parent in known else None].append(call)
    for parent, siblings in children.items():
        kept = siblings[:1] if parent is None else []
        rest = sorted(siblings[len(kept) :], key=lambda call: _content(sampled[call.id]))
        siblings[:] = [*kept, *rest]
    ordered: list[TracedCall] = []
    open_calls = [*reversed(children[None])]
    while open_calls:
        call = open_calls.pop()
        ordered.append(call)
        open_calls += reversed(children[call.id])
    return ordered


def _content(call: SampledCall) -> tuple[bytes, bytes]:
    return call.prompt_ids.tobytes(), call.completion.token_ids.tobytes()
