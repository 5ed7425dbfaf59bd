"""Columns of rows that other programs read, and that change the prompt or the loss."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rllm.rows.messages import is_empty
from rllm.rows.problem import RowError

UNSUPPORTED: Mapping[str, str] = {
    "audio": "Remove the column, because prompts contain only text.",
    "audios": "Remove the column, because prompts contain only text.",
    "chat_template": "Remove the column. Rows cannot set the chat template.",
    "chat_template_kwargs": "Remove the column. Rows cannot set options of the chat template.",
    "documents": "Write them into a message, or remove the column.",
    "enable_thinking": "Remove the column. For all rows, set rllm.disable_thinking.",
    "functions": "For examples, rename it to 'tools'. For `rllm train`, add --tools FILE.py:FUNCTION.",
    "image": "Remove the column, because prompts contain only text.",
    "image_url": "Remove the column, because prompts contain only text.",
    "images": "Remove the column, because prompts contain only text.",
    "system": 'Make it the first message: {"role": "system", "content": …}.',
    "system_prompt": 'Make it the first message: {"role": "system", "content": …}.',
    "video": "Remove the column, because prompts contain only text.",
    "videos": "Remove the column, because prompts contain only text.",
}
"""Column that changes prompts elsewhere -> the hint."""
OF_LOSS = frozenset(
    ("assistant_masks", "completion_mask", "loss_mask", "loss_weight", "sample_weight", "weight", "weights")
)
"""Columns of examples that change the loss elsewhere."""


def check_columns(row: Mapping[str, Any], used: Collection[str | None] = ()) -> None:
    """Raise RowError if a row has a column of `UNSUPPORTED` that is not empty and not in `used`. False is not empty."""
    for column, value in row.items():
        if column not in UNSUPPORTED:
            continue
        if isinstance(value, Mapping):  # The file format fills structs with nulls.
            value = {key: each for key, each in value.items() if each is not None}
        if column not in used and (value is False or not is_empty(value)):
            raise RowError(column, "is not used by rllm", UNSUPPORTED[column])


def check_no_weights(row: Mapping[str, Any]) -> None:
    """Raise RowError if an example has a column of `OF_LOSS` that is not empty."""
    if column := next((name for name in row if name in OF_LOSS and not is_empty(row[name])), None):
        raise RowError(column, "is not used by rllm", "Remove the column. A message may have a `weight` of 0.")


def check_no_tools(row: Mapping[str, Any], reason: str, hint: str) -> None:
    """Raise RowError if a row has tools, for readers that cannot show them."""
    if not is_empty(row.get("tools")):
        raise RowError("tools", f"is not used, because {reason}", hint)


def list_columns(row: Mapping[str, Any]) -> str:
    """Return the columns of a row as the subject of a sentence."""
    return f"the columns {', '.join(map(repr, row))}" if row else "no columns"
