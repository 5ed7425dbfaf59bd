"""Read the result of a reward as a `Score`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, SupportsFloat

from rllm_core.contracts.reward import Score

LONGEST_EXTRACT = 1000
"""Maximum number of characters of an extracted answer that are stored, because a reward may extract a whole response.
"""
KEYS = tuple(field.name for field in fields(Score))
FORM = "Return a number or {'value': NUMBER}"


class ResultError(Exception):
    """A result is not a score. The message has the result, and the value to return."""


def score_of(result: Any) -> Score:
    """Convert a reward's result to a score: a `Score`, a number, or a mapping with some of `KEYS`.

    Raises:
        ResultError: the result has a different form, or has no value and no reason for it.
    """
    score = result if isinstance(result, Score) else Score(**_fields(result))
    if score.value is None and score.applies and not score.feedback:
        raise ResultError(f"returned None. {FORM}")
    if score.value is not None and not score.applies:
        raise ResultError(f"returned {score.value!r:.80}, and that it does not apply. Return None as 'value'")
    return replace(
        score,
        value=None if score.value is None else _number("value", score.value),
        correct=_truth(score.correct),
        components={name: _number(name, value) for name, value in score.components.items()},
        metrics={name: _number(name, value) for name, value in score.metrics.items()},
        extracted=None if score.extracted is None else str(score.extracted)[:LONGEST_EXTRACT],
    )


def results_of(result: Any, count: int) -> list[Any]:
    """Return the results in the list that a reward for `count` rollouts returned.

    Raises:
        ResultError: it is not a list with `count` elements.
    """
    if isinstance(result, str | Mapping | Score) or not hasattr(result, "__iter__") or len(each := [*result]) != count:
        raise ResultError(f"returned {result!r:.80} for {count} rollouts. Return a list with one result per rollout")
    return each


def _fields(result: Any) -> Mapping[str, Any]:
    if not isinstance(result, Mapping):
        return {"value": result}
    if "value" not in result:
        raise ResultError(f"returned {dict(result)!r:.80} without 'value'. {FORM}")
    if unknown := sorted(map(repr, result.keys() - {*KEYS})):
        raise ResultError(f"returned the unknown key {', '.join(unknown)}. The keys are {', '.join(KEYS)}")
    return result


def _truth(value: Any) -> bool | None:
    # Numbers of numpy and torch have no dimension.
    plain = value.item() if getattr(value, "ndim", None) == 0 else value
    if not isinstance(plain, bool | None):
        raise ResultError(f"returned {value!r:.80} as 'correct'. Return True, False or None")
    return plain


def _number(name: str, value: Any) -> float:
    what, remedy = (f"{value!r:.80}", FORM) if name == "value" else (f"{value!r:.80} as {name!r}", "Return a number")
    if isinstance(value, str | bytes) or not isinstance(value, SupportsFloat):
        raise ResultError(f"returned {what}. {remedy}")
    try:
        number = float(value)
    except (TypeError, ValueError):  # an array with several numbers
        raise ResultError(f"returned {what}. {remedy}") from None
    if not math.isfinite(number):
        raise ResultError(f"returned {what}. Return a finite number")
    return number
