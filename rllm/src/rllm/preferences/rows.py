"""Rows of preferences, with the columns that TRL uses: prompt, chosen and rejected, or prompt, completion and label."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any

from rllm.supervised.rows import Conversation, PlainText, read_row
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
            same = takewhile(lambda both: both[0] == both[1], zip(chosen, rejected, strict=False))
            prompt = [message for message, _ in same]
            chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
        found = {CHOSEN: chosen, REJECTED: rejected}
    elif completion is not None and label in (True, False):
        found = {CHOSEN if label else REJECTED: completion}
    else:
        raise _bad_row(data, task_id)
    if prompt is None:
        raise _bad_row(data, task_id)
    row = {"prompt": prompt, "tools": data.get("tools")}
    return {name: read_row({**row, "completion": each}, task_id) for name, each in found.items()}


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


def _bad_row(data: Mapping[str, Any], task_id: str) -> ConfigError:
    return ConfigError(
        "bad-example",
        f"Row {task_id!r} cannot be a preference: it has {', '.join(map(repr, data)) or 'no columns'}; needed is "
        "prompt, chosen and rejected, or for loss kto also prompt, completion and label.",
        _ONE_OF_THESE,
    )
