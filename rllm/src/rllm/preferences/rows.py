"""Rows of preferences, with the columns that TRL uses: prompt, chosen and rejected, or prompt, completion and label."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from rllm.supervised.rows import Conversation, PlainText, read_row
from rllm_core.errors import ConfigError

CHOSEN, REJECTED = "chosen", "rejected"


def read_preference(data: Mapping[str, Any], task_id: str, loss: str) -> dict[str, Conversation | PlainText]:
    """Return the completions of a row: `CHOSEN` and `REJECTED`, or one of both if the row has a label.

    Raises:
        ConfigError: the row has other columns than `loss` needs, or a column cannot be an example.
    """
    chosen, rejected = data.get(CHOSEN), data.get(REJECTED)
    prompt, completion, label = data.get("prompt"), data.get("completion"), data.get("label")
    if chosen is not None and rejected is not None:
        if isinstance(chosen, list) and isinstance(rejected, list) and not isinstance(prompt, list):
            same = takewhile(lambda both: both[0] == both[1], zip(chosen, rejected, strict=False))
            prompt = [message for message, _ in same]
            chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
        found = {CHOSEN: chosen, REJECTED: rejected}
    elif loss == "kto" and completion is not None and label in (True, False):
        found = {CHOSEN if label else REJECTED: completion}
    else:
        raise _bad_row(data, task_id, loss)
    if prompt is None:
        raise _bad_row(data, task_id, loss)
    row = {"prompt": prompt, "tools": data.get("tools")}
    return {name: read_row({**row, "completion": each}, task_id) for name, each in found.items()}


def _bad_row(data: Mapping[str, Any], task_id: str, loss: str) -> ConfigError:
    needed, example = "prompt, chosen and rejected", '{"prompt": …, "chosen": …, "rejected": …}'
    if loss == "kto":
        needed, example = f"{needed}, or prompt, completion and label", '{"prompt": …, "completion": …, "label": true}'
    return ConfigError(
        "bad-example",
        f"Row {task_id!r} cannot be a preference: it has {', '.join(map(repr, data)) or 'no columns'}; needed is "
        f"{needed}.",
        f"Write {example}.",
    )
