"""Deleting sessions, and giving their space back."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from rllm_gateway.calls.opening import connect_to_write, failures, transaction

SESSIONS_AT_ONCE = 50
PAGES_AT_ONCE = 2000
"""Those who write wait no longer than for so many."""
_CHOSEN = (
    "SELECT id FROM sessions WHERE (:run IS NULL OR run = :run) AND (:before IS NULL OR opened < :before)"
    f" ORDER BY number LIMIT {SESSIONS_AT_ONCE}"
)


def prune(path: Path, run: str | None, before: float | None) -> int:
    """See `CallStore.prune`."""
    if run is None and before is None:
        raise ValueError("say which sessions: of a run, or opened before a time")
    chosen, deleted = {"run": run, "before": before}, 0
    with closing(connect_to_write(path)) as connection, failures(path, "pruned"):
        while True:
            with transaction(connection):
                sessions = connection.execute(_CHOSEN, chosen).fetchall()
                connection.executemany("DELETE FROM sessions WHERE id = ?", sessions)
            if not sessions:
                break
            deleted += len(sessions)
        with transaction(connection):
            connection.execute("DELETE FROM requests WHERE digest NOT IN (SELECT request FROM calls)")
        while connection.execute("PRAGMA freelist_count").fetchone()[0]:
            # A script is run to its end; `execute` frees one page.
            connection.executescript(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})")
    return deleted
