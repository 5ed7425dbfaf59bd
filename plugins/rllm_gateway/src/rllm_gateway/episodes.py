"""Make trajectories from a session's calls: one per role and group. A sampled token is in at most one row."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rllm_core.data.types import Step, Trajectory
from rllm_gateway.session import SessionTrace, TracedCall

UNDELIVERED, UNTRACED, BEHIND_STOP = "undelivered", "unanswered", "behind_stop_text"
PREFIX = "gateway"


@dataclass
class Traced:
    """The trajectories of a session, for training."""

    trajectories: list[Trajectory] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    """Numbers of sampled, trained and excluded tokens, and of calls and rows. Also the counters of the gateway."""
    last: str | None = None
    """Id of the last stored call that is used for training. None if no call is used."""


def traced(trace: SessionTrace, sampled: Mapping[str, Step], uid: str, cut_tokens: int = 0) -> Traced:
    """Return the trajectories of a session.

    Args:
        trace: the session's calls, and how they continue each other.
        sampled: call id -> its tokens. Calls that are missing in the trace were never answered.
        uid: uid of the rollout, from which the uids of trajectories are made.
        cut_tokens: number of sampled tokens after stop strings.
    """
    roots = roots_of(trace.calls)
    excluded: Counter[str] = Counter()
    parts: defaultdict[tuple[str, str | None], list[TracedCall]] = defaultdict(list)
    for call in trace.calls:
        if call.id not in sampled:
            continue
        if not call.delivered:
            excluded[UNDELIVERED] += len(sampled[call.id].response_ids)
        else:
            root = roots[call.id]
            parts[call.name or root.name or call.role, call.group or root.group].append(call)
    for call_id in sampled.keys() - {call.id for call in trace.calls}:
        excluded[UNTRACED] += len(sampled[call_id].response_ids)
    excluded[BEHIND_STOP] += cut_tokens
    trajectories = [
        Trajectory(
            role,
            [sampled[call.id] for call in in_lineages(calls, sampled)],
            uid=f"{uid}/{role}" if group is None else f"{uid}/{role}/{group}",
        )
        for (role, group), calls in parts.items()
    ]
    last = next((call.id for call in reversed(trace.calls) if call.delivered and call.id in sampled), None)
    return Traced(trajectories, _metrics(trace, trajectories, excluded), last)


def _metrics(trace: SessionTrace, trajectories: list[Trajectory], excluded: Counter[str]) -> dict[str, float]:
    trained = sum(trajectory.response_length for trajectory in trajectories)
    metrics = {
        "calls": len(trace.calls),
        "rows": sum(len(trajectory.tokens.segment_starts) for trajectory in trajectories),
        "sampled_tokens": trained + excluded.total(),
        "trained_tokens": trained,
        "excluded_tokens": excluded.total(),
        **{f"excluded_tokens/{reason}": tokens for reason, tokens in excluded.items() if tokens},
        **trace.counters,
    }
    return {f"{PREFIX}/{name}": float(value) for name, value in metrics.items()}


def roots_of(calls: Sequence[TracedCall]) -> dict[str, TracedCall]:
    """Return call id -> first call of its lineage."""
    known = {call.id: call for call in calls}
    roots: dict[str, TracedCall] = {}
    for call in calls:
        parent = call.parent if call.parent in known else None
        # A parent comes before the calls that continue it.
        roots[call.id] = call if parent is None else roots[parent]
    return roots


def in_lineages(calls: Sequence[TracedCall], sampled: Mapping[str, Step]) -> list[TracedCall]:
    """Sort the calls, so that as many calls as possible come directly after the call that they continue.

    Calls of parallel agents arrive in any order, so siblings are sorted by their tokens. The very first call stays
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


def _content(call: Step) -> tuple[bytes, bytes]:
    return call.prompt_ids.tobytes(), call.response_ids.tobytes()
