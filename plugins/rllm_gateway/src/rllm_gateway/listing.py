"""Print the contents of a store as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import orjson

from rllm_core.errors import ConfigError
from rllm_gateway.calls import CallReader, CallRow, SessionRow, SessionSummary, StoredSession
from rllm_gateway.exchange import REASONING
from rllm_gateway.link import LABEL, VALIDATION
from rllm_gateway.places import named_store

OPEN = "open"
SHOWN = 2000
"""Maximum number of characters of a message that are printed."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A selection of sessions of a store. A session is selected if it matches all fields."""

    run: str | None = None
    """Name of a run. None: sessions of all runs."""
    sessions: tuple[str, ...] = ()
    """Session ids. Empty: all sessions."""
    since: datetime | None = None
    """Earliest time at which a session was opened. None: no limit."""
    before: datetime | None = None
    """Sessions must have been opened before this time. None: no limit."""

    def has(self, row: SessionRow) -> bool:
        """True if `row`, a session of the selected run, is selected."""
        return (
            (not self.sessions or row.id in self.sessions)
            and (self.since is None or row.opened >= self.since.timestamp())
            and (self.before is None or row.opened < self.before.timestamp())
        )


ALL = Selection()


def opened(store: str | None, run: str | None = None) -> CallReader:
    """Open a store for reading. See `named_store`.

    Raises:
        ConfigError: the store does not exist.
        StoreError: it cannot be read.
    """
    return CallReader.open(named_store(store, run))


def sessions_of(reader: CallReader, selection: Selection = ALL) -> list[SessionSummary]:
    """Return the selected sessions. The result may be empty only without a selection.

    Raises:
        ConfigError: the store contains no selected session.
        StoreError: the store cannot be read.
    """
    of_run = list(reader.sessions(selection.run))
    if not of_run and selection.run is not None:
        runs = sorted({each.session.run for each in reader.sessions()})
        raise ConfigError(
            "run-not-found",
            f"The store has no session of run {selection.run!r}.",
            f"Set --run to a run of this store: {', '.join(map(repr, runs))}."
            if runs
            else "The store is empty. Set --store to a different store.",
        )
    missing = set(selection.sessions) - {each.session.id for each in of_run}
    if missing:
        raise ConfigError(
            "unknown-session",
            f"The store has no session {', '.join(map(repr, sorted(missing)))}.",
            "List the sessions with `rllm gateway sessions`.",
        )
    found = [each for each in of_run if selection.has(each.session)]
    if of_run and not found:
        raise ConfigError(
            "no-sessions",
            f"None of {counted(len(of_run), 'session')} was opened between --since and --before.",
            "List the sessions and their times with `rllm gateway sessions`.",
        )
    return found


def counted(count: int, what: str) -> str:
    """Return a count with its noun, such as ``1 session`` or ``2 sessions``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def session_lines(sessions: Sequence[SessionSummary]) -> Iterator[str]:
    """Yield one line per session."""
    for summary in sessions:
        row = summary.session
        ending = OPEN if summary.end is None else summary.end.ending
        when = datetime.fromtimestamp(row.opened).astimezone().isoformat(" ", "seconds")
        played = "  validation" if row.metadata.get(LABEL) == VALIDATION else ""
        yield f"{row.id}  run {row.run}  {counted(summary.calls, 'call')}  {ending}  {when}{played}"


def call_lines(stored: StoredSession) -> Iterator[str]:
    """Yield the conversation of a session. Each call shows only the messages after the call that it continues."""
    places = {row.id: place for place, row in enumerate(stored.calls)}
    for place, row in enumerate(stored.calls):
        follows = "" if row.parent is None else f", continues {places[row.parent]}"
        seen = "" if row.delivered else ", undelivered"
        yield (
            f"[{place}] {row.role}{follows}: {len(row.new_ids)} new tokens, {len(row.response_ids)} sampled by "
            f"weights {row.weight_version}, {row.finish_reason}{seen}"
        )
        for message in (*row.messages, row.response):
            yield from message_lines(message)
    for reward in stored.rewards:
        yield f"reward of {reward.role}: {reward.value:g}"
    yield OPEN if stored.end is None else stored.end.ending


def message_lines(message: Any) -> Iterator[str]:
    """Yield a message's reasoning, text and tool calls."""
    reasoning = message.get(REASONING)
    if reasoning:
        yield f"    {message['role']} thinks: {_shortened(reasoning)}"
    said, calls = message.get("content"), message.get("tool_calls", ())
    if said or not calls:
        yield f"    {message['role']}: {_shortened(said or '')}"
    for call in calls:
        yield f"    {message['role']} calls {call['function']['name']}: {_shortened(call['function']['arguments'])}"


def _shortened(said: Any) -> str:
    text = str(said)
    return f"{text[:SHOWN]}{'…' if len(text) > SHOWN else ''}"


def exported(reader: CallReader, selection: Selection) -> Iterator[bytes]:
    """Yield one line of JSON per call, with its whole prompt. Raises the errors of `sessions_of`."""
    for summary in sessions_of(reader, selection):
        stored = reader.session(summary.session.id)
        rewards = {reward.role: reward.value for reward in stored.rewards}
        for row in stored.calls:
            yield orjson.dumps(_exported(stored, row, rewards), option=orjson.OPT_SERIALIZE_NUMPY)


def _exported(stored: StoredSession, row: CallRow, rewards: dict[str, float]) -> dict[str, Any]:
    return {
        "session": row.session,
        "run": stored.session.run,
        "attempt": stored.session.rollout,
        "retry": stored.session.retry,
        "call": row.id,
        "parent": row.parent,
        "role": row.role,
        "messages": stored.messages(row.id),
        "reply": row.response,
        "prompt_ids": stored.prompt_ids(row.id),
        "response_ids": row.response_ids,
        "logprobs": [None if np.isnan(each) else float(each) for each in row.logprobs],
        "weight_version": row.weight_version,
        "finish_reason": row.finish_reason,
        "parameters": row.sent,
        "outcomes": row.outcomes,
        "delivered": row.delivered,
        "reward": rewards.get(row.role),
    }
