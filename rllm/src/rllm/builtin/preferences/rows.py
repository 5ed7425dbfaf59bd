"""Rows of preferences, with the columns that TRL uses: prompt, chosen and rejected, or prompt, completion and label."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from rllm.builtin.supervised.rows import make_conversation
from rllm.rows.columns import check_columns, check_no_tools, check_no_weights, list_columns
from rllm.rows.example import Conversation, PlainText
from rllm.rows.messages import read_chat_text
from rllm.rows.problem import RowError, shown
from rllm_core.data.messages import read_text

CHOSEN, REJECTED = "chosen", "rejected"
MARGIN = "margin"
"""Column of a pair, and key of `Trajectory.info`: the wanted difference of a reward model's scores."""
_PAIR = '{"prompt": …, "chosen": …, "rejected": …}'
_ONE_OF_THESE = f'Write {_PAIR}, or for --loss kto {{"prompt": …, "completion": …, "label": true}}.'


def read_preference(data: Mapping[str, Any]) -> dict[str, Conversation | PlainText]:
    """Return the completions of a row: `CHOSEN` and `REJECTED`, or one of both if the row has a label.

    Raises:
        RowError: the row has other columns than these, or a column cannot be an example.
    """
    columns = (CHOSEN, REJECTED, "prompt", "completion")
    chosen, rejected, prompt, completion = (read_chat_text(data.get(column)) for column in columns)
    label = data.get("label")
    if chosen is not None and rejected is not None:
        if isinstance(chosen, list) and isinstance(rejected, list) and not isinstance(prompt, list):
            start = _common_start(chosen, rejected)
            if isinstance(prompt, str) and not any(prompt.strip() in _text(message) for message in start):
                raise RowError(
                    "prompt",
                    "is text, and the messages with which both `chosen` and `rejected` start do not have it",
                    'Write {"prompt": [{"role": "user", "content": …}], …}.',
                )
            prompt, chosen, rejected = start, chosen[len(start) :], rejected[len(start) :]
            if not chosen and not rejected:
                raise RowError("chosen", "and `rejected` are equal", _ONE_OF_THESE)
        elif isinstance(prompt, list) and isinstance(chosen, list) and isinstance(rejected, list) and prompt:
            # Some data sets repeat the prompt in both.
            if chosen[: len(prompt)] == prompt == rejected[: len(prompt)]:
                chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
        elif isinstance(prompt, str) and all(
            isinstance(each, str) and prompt and each.startswith(prompt) for each in (chosen, rejected)
        ):
            raise RowError("chosen", "and `rejected` start with `prompt`", "Remove the prompt from both.")
        found = {CHOSEN: chosen, REJECTED: rejected}
    elif completion is not None and label is not None and label not in (True, False):
        raise RowError("label", f"{shown(label)} instead of true or false", _ONE_OF_THESE)
    elif completion is not None and label is not None:
        found = {CHOSEN if label else REJECTED: completion}
    else:
        raise _no_preference(data)
    if prompt is None:
        raise _no_preference(data)
    check_columns(data)
    check_no_weights(data)
    return {
        name: _example(prompt, name if chosen is not None else "completion", each, data) for name, each in found.items()
    }


def used_columns(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns that `read_preference` reads of a row with a preference."""
    is_pair = data.get(CHOSEN) is not None and data.get(REJECTED) is not None
    return ("prompt", *((CHOSEN, REJECTED) if is_pair else ("completion", "label")), "tools")


def read_margin(data: Mapping[str, Any]) -> float:
    """Return the margin of a pair, 0 if it has none.

    Raises:
        RowError: it is no finite number.
    """
    margin = data.get(MARGIN)
    if margin is None:
        return 0.0
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not math.isfinite(margin):
        raise RowError(MARGIN, f"{shown(margin)} instead of a number", "Write a finite number, or remove the column.")
    return float(margin)


def _example(prompt: Any, column: str, completion: Any, data: Mapping[str, Any]) -> Conversation | PlainText:
    if isinstance(prompt, str) and isinstance(completion, str):
        check_no_tools(data, "text has no chat template", "Write lists of messages, or remove the tools.")
        return PlainText(prompt, completion)
    if isinstance(prompt, list) and isinstance(completion, list):
        return make_conversation(("prompt", prompt), (column, completion), data.get("tools"), _ONE_OF_THESE)
    raise RowError("prompt", f"and `{column}` must both be text, or both be lists of messages", _ONE_OF_THESE)


def check_completions(names: Iterable[str], loss: str) -> None:
    """Check that a row has the completions that the loss compares.

    Raises:
        RowError: the row has a label, and the loss compares pairs.
    """
    if loss != "kto" and [*names] != [CHOSEN, REJECTED]:
        problem = f"belongs to one completion, and loss {loss} compares two completions"
        raise RowError("label", problem, f"Add --loss kto, or write {_PAIR}.")


def _common_start(one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
    """Return the messages with which both conversations start."""
    both = takewhile(lambda pair: pair[0] == pair[1] and isinstance(pair[0], Mapping), zip(one, other, strict=False))
    return [message for message, _ in both]


def _text(message: Any) -> str:
    return read_text(message) if isinstance(message.get("content"), str | list) else ""


def _no_preference(data: Mapping[str, Any]) -> RowError:
    return RowError(
        list_columns(data),
        "contain no preference. They must be prompt, chosen and rejected, or for loss kto prompt, completion and label",
        _ONE_OF_THESE,
    )
