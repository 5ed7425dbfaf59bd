"""A stored session as an episode: the trajectories that a run would have made of it, with the rewards it was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import orjson

from rllm_core.contracts.engine import Completion
from rllm_core.contracts.reward import Attempt
from rllm_core.data.messages import Reply, ToolCall
from rllm_core.data.types import Episode, TerminationReason
from rllm_gateway.attempt_sampler import SampledCall
from rllm_gateway.calls import CallRow, StoredSession
from rllm_gateway.episodes import Traced, traced
from rllm_gateway.live_session import UNDELIVERED
from rllm_gateway.returned import Returned
from rllm_gateway.rewarding import pay
from rllm_gateway.session import GROUP, NAME, TASK, SessionTrace, TracedCall

ATTEMPT = "attempt"
"""Key of a step's info: what rewards look at, `Attempt` as JSON data. The last reply of an episode has it."""


def episode_of(stored: StoredSession, uid: str) -> Episode:
    """The episode of a session.

    Args:
        stored: the session. What was not delivered is left out, as in a run.
        uid: of the episode.

    Raises:
        DamagedError: a call is lost.
    """
    rewards = {row.role: row.value for row in stored.rewards}
    made = traced(_trace_of(stored, rewards), _sampled(stored), uid, lambda ids: "")
    _tell(stored, made)
    episode = Episode(id=uid, trajectories=made.trajectories, metrics=made.metrics)
    pay(episode, Returned(rewards=rewards))
    failed = stored.end is not None and stored.end.ending == "failed"
    episode.termination_reason = TerminationReason.ERROR if failed else TerminationReason.ENV_DONE
    return episode


def _trace_of(stored: StoredSession, rewards: Mapping[str, float]) -> SessionTrace:
    ending: Any = "closed" if stored.end is None else stored.end.ending
    calls = tuple(map(_traced_call, stored.calls))
    return SessionTrace(id=stored.session.id, calls=calls, rewards=rewards, counters={}, ending=ending)


def _traced_call(row: CallRow) -> TracedCall:
    said = row.call.parameters
    return TracedCall(
        id=row.id,
        parent=row.parent,
        role=row.role,
        name=said.get(NAME),
        group=said.get(GROUP),
        delivered=row.delivered,
        excluded=None if row.delivered else UNDELIVERED,
    )


def _sampled(stored: StoredSession) -> dict[str, SampledCall]:
    return {row.id: SampledCall(stored.prompt_ids(row.id), _completion_of(row), 0) for row in stored.calls}


def _completion_of(row: CallRow) -> Completion:
    call = row.call
    return Completion(
        token_ids=call.response_ids,
        logprobs=call.logprobs,
        finish_reason=call.finish_reason,
        weight_version=call.weight_version,
        version_spans=call.version_spans,
    )


def _tell(stored: StoredSession, made: Traced) -> None:
    """Put texts into the steps, and what rewards look at into the last one."""
    for row in stored.calls:
        if row.id in made.steps:
            made.steps[row.id].text = _reply_of(row).text
    last = next((row for row in reversed(stored.calls) if row.id in made.steps), None)
    if last is None or made.last is None:
        return
    reply = _reply_of(last)
    attempt = Attempt(
        data=stored.session.metadata.get(TASK, {}),
        messages=[*stored.messages(last.id), reply.message],
        reply=reply,
        response_tokens=sum(trajectory.response_length for trajectory in made.trajectories),
    )
    made.last.info[ATTEMPT] = asdict(attempt)


def _reply_of(row: CallRow) -> Reply:
    """The reply, as the gateway has taken it apart."""
    message = row.reply or {}
    content = str(message.get("content") or "")
    return Reply(
        text=content,
        content=content,
        reasoning=message.get("reasoning_content"),
        tool_calls=tuple(map(_tool_call, message.get("tool_calls", ()))),
        finish_reason=row.call.finish_reason,
    )


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    said = call["function"]
    return ToolCall(id=call["id"], name=said["name"], arguments=orjson.loads(said["arguments"] or "{}"))
