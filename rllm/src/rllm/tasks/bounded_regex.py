"""Regular expressions of users, matched in processes: some take longer than the universe on some texts."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from rllm.tasks.worker_pool import WorkerPool
from rllm_serving.line_process import DiedError

MOST_WORKERS = 4


class SlowPatternError(Exception):
    """A match took too long; the message says so."""


@cache
def _pool() -> WorkerPool:
    """Shared by all rewards of the process."""
    return WorkerPool("rllm.tasks.regex_worker", min(MOST_WORKERS, os.cpu_count() or 1))


def matches_whole(pattern: str, text: str, seconds: float) -> bool:
    """Whether a pattern matches the whole text; a dot matches line breaks too. Waits for a process.

    Raises:
        SlowPatternError: it takes longer than `seconds`.
    """
    return bool(_ask(pattern, text, seconds, whole=True))


def last_group(pattern: str, text: str, seconds: float) -> str | None:
    """The first group of the last match that has one; None where there is none. Waits for a process.

    Raises:
        SlowPatternError: it takes longer than `seconds`.
    """
    found: str | None = _ask(pattern, text, seconds, whole=False)
    return found


def _ask(pattern: str, text: str, seconds: float, **how: bool) -> Any:
    try:
        return _pool().ask({"pattern": pattern, "text": text, "seconds": seconds, **how})
    except DiedError as error:
        raise SlowPatternError(f"the pattern {pattern!r:.80} is not matched in {seconds:g} s ({error})") from None
