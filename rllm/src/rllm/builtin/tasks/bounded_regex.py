"""Match users' regular expressions in separate processes, because some patterns take forever on some text."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from rllm.builtin.tasks.worker_pool import WorkerPool
from rllm_serving.line_process import DiedError

MOST_WORKERS = 4


class SlowPatternError(Exception):
    """A match took too long. The message gives the pattern and the limit."""


@cache
def _pool() -> WorkerPool:
    """Return the worker pool, which all rewards of the process share."""
    return WorkerPool("rllm.builtin.tasks.regex_worker", min(MOST_WORKERS, os.cpu_count() or 1))


def matches_whole(pattern: str, text: str, seconds: float) -> bool:
    """True if a pattern matches the whole text. A dot matches line breaks too. Blocks until a process returns.

    Raises:
        SlowPatternError: it takes longer than `seconds`.
    """
    return bool(_ask(pattern, text, seconds, whole=True))


def last_group(pattern: str, text: str, seconds: float) -> str | None:
    """Return the first group of the last match that has one, or None. Blocks until a process returns.

    Raises:
        SlowPatternError: it takes longer than `seconds`.
    """
    found: str | None = _ask(pattern, text, seconds, whole=False)
    return found


def _ask(pattern: str, text: str, seconds: float, **how: bool) -> Any:
    try:
        return _pool().ask({"pattern": pattern, "text": text, "seconds": seconds, **how})
    except DiedError as error:
        raise SlowPatternError(f"matching {pattern!r:.80} takes longer than {seconds:g} s ({error})") from None
