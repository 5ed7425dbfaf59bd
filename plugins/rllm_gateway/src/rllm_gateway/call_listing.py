"""Print the contents of a store as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from rllm_core.errors import ConfigError
from rllm_gateway.apis.exchange import REASONING
from rllm_gateway.calls import CallReader, SessionSummary, StoredSession
from rllm_gateway.sessions.link import LABEL, VALIDATION

OPEN = "open"
SHOWN = 2000
"""Maximum number of characters of a message that are printed."""


def sessions_of(reader: CallReader, run: str | None = None) -> list[SessionSummary]:
    """Return the sessions of a run, or of all runs. Only a store without sessions gives an empty list.

    Raises:
        ConfigError: the store contains no session of the run.
        StoreError: the store cannot be read.
    """
    found = list(reader.sessions(run))
    if not found and run is not None:
        runs = sorted({each.session.run for each in reader.sessions()})
        raise ConfigError(
            "run-not-found",
            f"The store has no session of run {run!r}.",
            f"Set --run to a run of this store: {', '.join(map(repr, runs))}."
            if runs
            else "The store is empty. Set --store to a different store.",
        )
    return found


def format_count(count: int, what: str) -> str:
    """Return a count with its noun, such as ``1 session`` or ``2 sessions``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def session_lines(sessions: Sequence[SessionSummary]) -> Iterator[str]:
    """Yield one line per session."""
    for summary in sessions:
        row = summary.session
        reason = OPEN if summary.end is None else summary.end.ending
        when = datetime.fromtimestamp(row.opened).astimezone().isoformat(" ", "seconds")
        validation_mark = "  validation" if row.metadata.get(LABEL) == VALIDATION else ""
        yield f"{row.id}  run {row.run}  {format_count(summary.calls, 'call')}  {reason}  {when}{validation_mark}"


def describe_session(summary: SessionSummary) -> dict[str, Any]:
    """Return a session as JSON. `opened` is in seconds since 1970, and `ending` is None for an open session."""
    row = summary.session
    return {
        "id": row.id,
        "run": row.run,
        "calls": summary.calls,
        "ending": None if summary.end is None else summary.end.ending,
        "opened": row.opened,
        "metadata": row.metadata,
    }


def call_lines(stored: StoredSession) -> Iterator[str]:
    """Yield the conversation of a session. Each call shows only the messages after the call that it continues."""
    numbers = {row.id: number for number, row in enumerate(stored.calls)}
    for number, row in enumerate(stored.calls):
        follows = "" if row.parent is None else f", continues {numbers[row.parent]}"
        seen = "" if row.delivered else ", undelivered"
        yield (
            f"[{number}] {row.role}{follows}: {len(row.new_ids)} new tokens, {len(row.response_ids)} sampled by "
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
        yield f"    {message['role']} thinks: {_shorten(reasoning)}"
    text, calls = message.get("content"), message.get("tool_calls", ())
    if text or not calls:
        yield f"    {message['role']}: {_shorten(text or '')}"
    for call in calls:
        yield f"    {message['role']} calls {call['function']['name']}: {_shorten(call['function']['arguments'])}"


def _shorten(text: Any) -> str:
    text = str(text)
    return f"{text[:SHOWN]}{'…' if len(text) > SHOWN else ''}"
