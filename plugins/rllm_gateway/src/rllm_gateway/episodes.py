"""From a session's trace to trajectories: one per role and group, each sampled token in one row at most."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.types import Step, Trajectory
from rllm_gateway.attempt_sampler import SampledCall
from rllm_gateway.lineages import in_lineages, roots_of
from rllm_gateway.session import SessionTrace, TracedCall

UNDELIVERED, UNTRACED, BEHIND_STOP = "undelivered", "unanswered", "behind_stop_text"
PREFIX = "gateway"


@dataclass
class Traced:
    """What a session gives to train on."""

    trajectories: list[Trajectory] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    """How many tokens were sampled, trained and excluded, by reason; calls and rows; the gateway's counters."""
    last: Step | None = None
    """The reply that was stored last, of those that are trained on."""
    steps: dict[str, Step] = field(default_factory=dict)
    """What is trained on, by call."""


def traced(
    trace: SessionTrace, sampled: Mapping[str, SampledCall], uid: str, text_of: Callable[[NDArray[np.int32]], str]
) -> Traced:
    """The trajectories of a session.

    Args:
        trace: which calls there were, and how they continue each other.
        sampled: the tokens of the calls; others than the trace's were sampled and never answered.
        uid: of the attempt; trajectories are named behind it.
        text_of: decodes a reply.
    """
    roots = roots_of(trace.calls)
    excluded: Counter[str] = Counter()
    parts: defaultdict[tuple[str, str | None], list[TracedCall]] = defaultdict(list)
    for call in trace.calls:
        if call.id not in sampled:
            continue
        if reason := _reason(call):
            excluded[reason] += len(sampled[call.id].completion.token_ids)
        else:
            root = roots[call.id]
            parts[call.name or root.name or call.role, call.group or root.group].append(call)
    for call_id in sampled.keys() - {call.id for call in trace.calls}:
        excluded[UNTRACED] += len(sampled[call_id].completion.token_ids)
    excluded[BEHIND_STOP] += sum(call.cut for call in sampled.values())
    trajectories: list[Trajectory] = []
    steps: dict[str, Step] = {}
    for (role, group), calls in parts.items():
        trajectory = Trajectory(role, uid=f"{uid}/{role}" if group is None else f"{uid}/{role}/{group}")
        for call in in_lineages(calls, sampled):
            steps[call.id] = _add_step(trajectory, sampled[call.id], text_of)
        trajectories.append(trajectory)
    last = next((steps[call.id] for call in reversed(trace.calls) if call.id in steps), None)
    return Traced(trajectories, _metrics(trace, trajectories, excluded), last, steps)


def _reason(call: TracedCall) -> str | None:
    return call.excluded or (None if call.delivered else UNDELIVERED)


def _add_step(trajectory: Trajectory, call: SampledCall, text_of: Callable[[NDArray[np.int32]], str]) -> Step:
    completion = call.completion
    return trajectory.add_step(
        call.prompt_ids,
        completion.token_ids,
        completion.logprobs,
        text=text_of(completion.token_ids),
        weight_version=completion.weight_version,
        version_spans=completion.version_spans,
        info={"finish_reason": completion.finish_reason},
    )


def _metrics(trace: SessionTrace, trajectories: list[Trajectory], excluded: Counter[str]) -> dict[str, float]:
    trained = sum(trajectory.response_length for trajectory in trajectories)
    figures = {
        "calls": len(trace.calls),
        "rows": sum(len(trajectory.tokens.segment_starts) for trajectory in trajectories),
        "sampled_tokens": trained + excluded.total(),
        "trained_tokens": trained,
        "excluded_tokens": excluded.total(),
        **{f"excluded_tokens/{reason}": tokens for reason, tokens in excluded.items() if tokens},
        **trace.counters,
    }
    return {f"{PREFIX}/{name}": float(value) for name, value in figures.items()}
