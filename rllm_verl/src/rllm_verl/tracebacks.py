"""The cause of an error, found in the text of a traceback or of a log."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PREFIX = r"(?:\([^)]*\) ?)?(?:[A-Z]+ [-\d]+ [:.,\d]+ \[[^\]]*\] ?)?"
"""What vLLM writes before each line: ``(EngineCore pid=7) ERROR 10-31 12:00:00 [core.py:718]``."""
_EXCEPTION = re.compile(rf"^{_PREFIX}(?P<error>(?:\w+\.)*\w*(?:Error|Exception)(?::\s.*)?)$")
_PLACE = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_PROCESS = re.compile(r"\(pid=(?P<pid>\d+), ip=(?P<node>[^,)\s]+)")
_ELSEWHERE = re.compile(r"\b(?:see|check)\b.*\b(?:above|below|logs?)\b", re.IGNORECASE)


def plain(text: str) -> str:
    """`text` without the colours of terminals."""
    return _COLOUR.sub("", text)


def points_elsewhere(text: str) -> bool:
    """Whether an error only says where its cause is told. vLLM: "See stack trace (above) for the root cause"."""
    return not text.strip() or _ELSEWHERE.search(text) is not None


def last_cause(lines: Iterable[str]) -> str | None:
    """The last exception in a text that says what is wrong, as ``ValueError: why``; None where there is none."""
    found = [match["error"] for line in lines if (match := _EXCEPTION.match(line.strip()))]
    return next((error for error in reversed(found) if not points_elsewhere(error.partition(":")[2])), None)


def place_in(traceback: str) -> str:
    """``(worker.py, line 12)``: where a traceback ends; empty where it has no line of a file."""
    places = list(_PLACE.finditer(traceback))
    if not places:
        return ""
    file, line = places[-1]["file"], places[-1]["line"]
    return f"({file.rpartition('/')[2]}, line {line})"


def process_in(traceback: str) -> tuple[int, str]:
    """Process id and address of the process in which Ray's traceback ends; 0 and "" where it names none."""
    found = list(_PROCESS.finditer(traceback))
    return (int(found[-1]["pid"]), found[-1]["node"]) if found else (0, "")
