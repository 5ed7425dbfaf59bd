"""A stored session as an episode: the trajectories that a run would have made of it, with the rewards it was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import orjson

from rllm_core.contracts.reward import Attempt
from rllm_core.data.messages import Reply, ToolCall
from rllm_core.data.types import Episode, Step, TerminationReason
from rllm_gateway.calls import CallRow, StoredSession
from rllm_gateway.episodes import traced
from rllm_gateway.rewarding import Returned, pay
from rllm_gateway.session import TASK, SessionTrace, traced_call

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
    ending: Any = "closed" if stored.end is None else stored.end.ending
    calls = tuple(traced_call(row, row.delivered) for row in stored.calls)
    trace = SessionTrace(id=stored.session.id, calls=calls, rewards=rewards, counters={}, ending=ending)
    steps = {row.id: _step_of(stored, row) for row in stored.calls}
    made = traced(trace, steps, uid)
    episode = Episode(id=uid, trajectories=made.trajectories, metrics=made.metrics)
    if made.last is not None:
        steps[made.last].info[ATTEMPT] = asdict(_attempt_of(stored, made.last, episode))
    pay(episode, Returned(rewards=rewards))
    episode.termination_reason = TerminationReason.ERROR if ending == "failed" else TerminationReason.ENV_DONE
    return episode


def _step_of(stored: StoredSession, row: CallRow) -> Step:
    return Step(
        stored.prompt_ids(row.id),
        row.response_ids,
        row.logprobs,
        text=_reply_of(row).text,
        weight_version=row.weight_version,
        version_spans=row.version_spans,
        info={"finish_reason": row.finish_reason},
    )


def _attempt_of(stored: StoredSession, call: str, episode: Episode) -> Attempt:
    """What rewards look at: the conversation that ends with the last reply."""
    reply = _reply_of(next(row for row in stored.calls if row.id == call))
    return Attempt(
        data=stored.session.metadata.get(TASK, {}),
        messages=[*stored.messages(call), reply.message],
        reply=reply,
        response_tokens=sum(trajectory.response_length for trajectory in episode.trajectories),
    )


def _reply_of(row: CallRow) -> Reply:
    """The reply, as the gateway has taken it apart."""
    message = row.reply or {}
    content = str(message.get("content") or "")
    return Reply(
        text=content,
        content=content,
        reasoning=message.get("reasoning_content"),
        tool_calls=tuple(map(_tool_call, message.get("tool_calls", ()))),
        finish_reason=row.finish_reason,
    )


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    said = call["function"]
    return ToolCall(id=call["id"], name=said["name"], arguments=orjson.loads(said["arguments"] or "{}"))
