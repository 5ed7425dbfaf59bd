"""Columns of rows that other programs read, and that change the prompt or the loss."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rllm.rows.messages import is_empty
from rllm.rows.problem import RowError

UNSUPPORTED: Mapping[str, str] = {
    "audio": "Prompts contain only text.",
    "audios": "Prompts contain only text.",
    "chat_template": "Rows cannot set the chat template.",
    "chat_template_kwargs": "Rows cannot set options of the chat template.",
    "documents": "Write them into a message.",
    "enable_thinking": "Rows cannot set options of the chat template. For all rows, set rllm.disable_thinking.",
    "functions": "Rename it to 'tools'.",
    "image": "Prompts contain only text.",
    "images": "Prompts contain only text.",
    "system": 'Make it the first message: {"role": "system", "content": …}.',
    "system_prompt": 'Make it the first message: {"role": "system", "content": …}.',
    "video": "Prompts contain only text.",
    "videos": "Prompts contain only text.",
    "weight": "Weights of rows are not supported: repeat a row, or remove it.",
}
"""Column -> what to do with it."""


def check_columns(row: Mapping[str, Any], used: Collection[str | None] = ()) -> None:
    """Raise RowError if a row has a column of `UNSUPPORTED` that is not empty and not in `used`. False is not empty."""
    for column in UNSUPPORTED.keys() & row.keys():
        if column not in used and (row[column] is False or not is_empty(row[column])):
            raise RowError(column, "is not used by rllm", f"{UNSUPPORTED[column]} Otherwise remove the column.")


def check_no_tools(row: Mapping[str, Any]) -> None:
    """Raise RowError if a row offers tools, for readers that cannot run them."""
    if not is_empty(row.get("tools")):
        raise RowError(
            "tools",
            "describes tools, and this environment runs none",
            "Remove the column, and give functions: --tools FILE.py:FUNCTION. Examples of `rllm sft` may have tools.",
        )


def named(row: Mapping[str, Any]) -> str:
    """Return the columns of a row as the subject of a sentence."""
    return f"the columns {', '.join(map(repr, row))}" if row else "no columns"
