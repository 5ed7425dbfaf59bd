"""Read the score from a judge's response."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from rllm.builtin.tasks.bounded_regex import SlowPatternError, last_group
from rllm.builtin.tasks.judge_options import JudgeParams

YES_NO = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
SEVERAL = rf"(?<![\d.])({NUMBER})\s*(?:to|and|-|\u2013|/|out of)\s*({NUMBER})"
PAIR = re.compile(SEVERAL)
"""A range such as ``1 to 10``, or a grade with its best, such as ``7/10``."""
NAMED = re.compile(
    rf"\b(?:score|grade|rating)\b[^\w\n]{{0,9}}(?:is\b|of\b)?[^\w\n]{{0,9}}(?:{SEVERAL}|({NUMBER}))", re.IGNORECASE
)
MARKUP = re.compile(r"[*`$]")

LONGEST = 20_000
"""Number of characters at the end of a response that are searched, because judges write the score last."""

SECONDS = 5.0
"""Time limit of one match, in seconds."""


class UnreadableError(Exception):
    """A judge's response contains no score. The message gives the reason."""


def read_score(said: str, params: JudgeParams) -> tuple[float, str]:
    """Return the reward, from 0 to 1, and the part of `said` that contains it.

    Raises:
        UnreadableError: there is no score, or it is outside of `worst` and `best`.
    """
    said = said[-LONGEST:]
    if params.read == "yes_no":
        word = _last(YES_NO.findall(said), "neither yes nor no")
        return float(word.lower() == "yes"), word
    if params.read == "number":
        text = _grade(said, params)
    elif params.read == "regex":
        text = _matched(said, params.pattern or "")
    else:
        text = _field(said, params.field or "")
    return _scaled(text, params), text


def _last(found: list[str], what: str) -> str:
    if not found:
        raise UnreadableError(f"it has {what}")
    return found[-1]


def _grade(said: str, params: JudgeParams) -> str:
    """Return the number that is the grade: in ``7/10`` if 10 is the best, in ``Score: 7``, or in the last line.

    The text may repeat its grade, but not contain a different one. A scale such as ``1 to 10`` is no grade.
    """
    found: list[str] = []

    def read_pair(match: re.Match[str]) -> str:
        first, second = match.groups()
        if abs(float(second)) != abs(params.best):
            return match[0]
        if match.string[match.end(1) : match.start(2)].strip() in ("/", "out of"):
            found.append(first)
            return first
        return "" if float(first) in (params.worst, 0, 1) else match[0]

    said = PAIR.sub(read_pair, MARKUP.sub("", said)).strip()
    found += [number for numbers in NAMED.findall(said) for number in numbers if number]
    found = found or re.findall(NUMBER, said.rpartition("\n")[2]) or re.findall(NUMBER, said)
    if len({float(each) for each in found}) > 1:
        raise UnreadableError(f"it has several numbers that may be the grade, {', '.join(found)}")
    return _last(found, "no number")


def _matched(said: str, pattern: str) -> str:
    try:
        found = last_group(pattern, said, SECONDS)
    except SlowPatternError as error:
        raise UnreadableError(str(error)) from None
    return _last([] if found is None else [found], f"nothing that matches {pattern}")


def _field(said: str, field: str) -> str:
    value: Any = _last_object(said)
    for part in field.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise UnreadableError(f"its JSON has no {field!r}")
        value = value[part]
    return json.dumps(int(value) if isinstance(value, bool) else value).strip('"')


def _last_object(said: str) -> Mapping[str, Any]:
    """Return the last JSON object that is not inside of a different one."""
    decoder, found, start = json.JSONDecoder(), None, said.find("{")
    while start >= 0:
        try:
            found, end = decoder.raw_decode(said, start)
        except (ValueError, RecursionError):
            end = start + 1
        start = said.find("{", end)
    if not isinstance(found, Mapping):
        raise UnreadableError("it has no JSON object")
    return found


def _scaled(text: str, params: JudgeParams) -> float:
    try:
        number = float(text)
    except ValueError:
        raise UnreadableError(f"{text!r:.80} is no number") from None
    value = (number - params.worst) / (params.best - params.worst)
    if not 0 <= value <= 1:
        raise UnreadableError(f"{text} is not between {params.worst:g} and {params.best:g}")
    return value
