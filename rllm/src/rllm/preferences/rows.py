"""Rows of preferences, with the columns that TRL uses: prompt, chosen and rejected, or prompt, completion and label."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from rllm.supervised.rows import Conversation, PlainText, read_row
from rllm_core.data.messages import read_text
from rllm_core.errors import ConfigError

CHOSEN, REJECTED = "chosen", "rejected"
_PAIR = '{"prompt": …, "chosen": …, "rejected": …}'
_ONE_OF_THESE = f'Write {_PAIR}, or for --loss kto {{"prompt": …, "completion": …, "label": true}}.'


def read_preference(data: Mapping[str, Any], task_id: str) -> dict[str, Conversation | PlainText]:
    """Return the completions of a row: `CHOSEN` and `REJECTED`, or one of both if the row has a label.

    Raises:
        ConfigError: the row has other columns than these, or a column cannot be an example.
    """
    chosen, rejected = data.get(CHOSEN), data.get(REJECTED)
    prompt, completion, label = data.get("prompt"), data.get("completion"), data.get("label")
    if chosen is not None and rejected is not None:
        if isinstance(chosen, list) and isinstance(rejected, list) and not isinstance(prompt, list):
            start = _common_start(chosen, rejected)
            if isinstance(prompt, str) and not any(prompt.strip() in read_text(message) for message in start):
                raise _prompt_missing(task_id)
            prompt, chosen, rejected = start, chosen[len(start) :], rejected[len(start) :]
        found = {CHOSEN: chosen, REJECTED: rejected}
    elif completion is not None and label in (True, False):
        found = {CHOSEN if label else REJECTED: completion}
    else:
        raise _bad_row(data, task_id)
    if prompt is None:
        raise _bad_row(data, task_id)
    row = {"prompt": prompt, "tools": data.get("tools")}
    try:
        return {name: read_row({**row, "completion": each}, task_id) for name, each in found.items()}
    except ConfigError as error:
        raise ConfigError(error.code, error.message, _ONE_OF_THESE) from error


def check_completions(names: Iterable[str], task_id: str, loss: str) -> None:
    """Check that a row has the completions that the loss compares.

    Raises:
        ConfigError: the row has a label, and the loss compares pairs.
    """
    if loss != "kto" and [*names] != [CHOSEN, REJECTED]:
        raise ConfigError(
            "bad-example",
            f"Row {task_id!r} has one completion and 'label', and loss {loss} compares two completions.",
            f"Add --loss kto, or write {_PAIR}.",
        )


def _common_start(one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
    """Return the messages with which both conversations start."""
    both = takewhile(lambda pair: pair[0] == pair[1] and isinstance(pair[0], Mapping), zip(one, other, strict=False))
    return [message for message, _ in both]


def _prompt_missing(task_id: str) -> ConfigError:
    return ConfigError(
        "bad-example",
        f"Row {task_id!r} cannot be a preference: `prompt` is text, and the messages with which both `chosen` and "
        "`rejected` start do not have it.",
        'Write {"prompt": [{"role": "user", "content": …}], …}.',
    )


def _bad_row(data: Mapping[str, Any], task_id: str) -> ConfigError:
    return ConfigError(
        "bad-example",
        f"Row {task_id!r} cannot be a preference: it has {', '.join(map(repr, data)) or 'no columns'}; needed is "
        "prompt, chosen and rejected, or for loss kto also prompt, completion and label.",
        _ONE_OF_THESE,
    )
