"""Rows of data for fine-tuning, with the columns that TRL and verl use: messages, prompt and completion, or text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rllm.rows.columns import check_columns, check_no_tools, check_no_weights, list_columns
from rllm.rows.example import Conversation, PlainText
from rllm.rows.messages import is_empty, read_chat_text, read_messages
from rllm.rows.problem import RowError, shown
from rllm.rows.tools import read_tools

_ONE_OF_THESE = (
    'Write {"messages": [{"role": "user", "content": …}, {"role": "assistant", "content": …}]}, '
    '{"prompt": …, "completion": …} or {"text": …}.'
)

OTHER_FORMATS: Mapping[str, str] = {
    "conversations": "Rename 'conversations' to 'messages', and its keys 'from' to 'role' and 'value' to 'content'.",
    "conversation": "Rename 'conversation' to 'messages', with the keys 'role' and 'content'.",
    "preferred_output": "Use `rllm prefer`. Rename it to 'chosen', and 'non_preferred_output' to 'rejected'.",
    "chosen": "Use `rllm prefer`.",
    "instruction": "Join 'instruction' and 'input' to 'prompt', and rename 'output' to 'completion'.",
    "response": "Rename 'response' to 'completion', and the question to 'prompt'.",
    "answer": "Rename 'answer' to 'completion', and the question to 'prompt'. Or use `rllm train question`.",
}
"""Column of a format that rllm does not read -> how to change the row."""


def read_row(data: Mapping[str, Any], hint: str = _ONE_OF_THESE) -> Conversation | PlainText:
    """Return the example in a row.

    Columns that `used_columns` does not return are ignored, except the ones in `rllm.rows.columns.UNSUPPORTED`.

    Args:
        data: the row.
        hint: columns to write, for errors of a row that has none of them.

    Raises:
        RowError: the row has none of the columns, a part of it cannot be used, or nothing in it can be trained.
    """
    check_columns(data)
    check_no_weights(data)
    tools = data.get("tools")
    if data.get("messages") is not None:
        return make_conversation(None, ("messages", data["messages"]), tools, hint)
    prompt, completion = read_chat_text(data.get("prompt")), read_chat_text(data.get("completion"))
    if prompt is not None and completion is not None:
        if isinstance(prompt, str) and isinstance(completion, str):
            check_no_tools(data, "text has no chat template", "Write lists of messages, or remove the tools.")
            return PlainText(prompt, completion)
        if isinstance(prompt, list) and isinstance(completion, list):
            return make_conversation(("prompt", prompt), ("completion", completion), tools, hint)
        raise RowError("prompt", "and `completion` must both be text, or both be lists of messages", hint)
    if (text := data.get("text")) is not None:
        if not isinstance(text, str):
            raise RowError("text", f"{shown(text)} instead of text", hint)
        check_no_tools(data, "text has no chat template", "Write `messages`, or remove the tools.")
        return PlainText("", text)
    problem = "contain no example. They must be messages, prompt and completion, or text"
    raise RowError(list_columns(data), problem, hint_for_format(data) or hint)


def used_columns(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns that `read_row` reads of a row with an example."""
    if data.get("messages") is not None:
        return "messages", "tools"
    is_pair = data.get("prompt") is not None and data.get("completion") is not None
    return ("prompt", "completion", "tools") if is_pair else ("text",)


Column = tuple[str, Any]
"""Name and value of a column."""


def make_conversation(prompt: Column | None, trained: Column, tools: Any, hint: str) -> Conversation:
    """Return the conversation of columns with messages.

    Args:
        prompt: the messages before the trained ones, if they have their own column.
        trained: the messages of which the assistant's are trained.
        tools: the value of the column ``tools``.
        hint: what to write, for errors of a conversation that cannot be trained.

    Raises:
        RowError: a part cannot be used, or nothing in `trained` can be trained.
    """
    before = [] if prompt is None else read_messages(prompt[1], prompt[0]).messages
    column, value = trained
    chat = read_messages(value, column)
    answers = [at for at, each in enumerate(chat.messages) if each["role"] == "assistant"]
    if not answers:
        raise RowError(column, "has no assistant message to train on", hint)
    if answers[-1] == 0 and not before:
        raise RowError(column, "starts with its only assistant message, and nothing comes before it", hint)
    untrained = {len(before) + at for at in chat.untrained}
    if not before and answers[0] == 0:
        untrained.add(0)  # No prompt comes before it.
    if chat.untrained.issuperset(answers):
        raise RowError(column, "has no assistant message that is trained: their weights are 0", "Remove the row.")
    end = answers[-1] + 1
    return Conversation(
        messages=[*before, *chat.messages[:end]],
        trained_from=len(before),
        tools=read_tools(tools),
        untrained=frozenset(untrained),
        unused=len(chat.messages) - end,
        column=column,
    )


def hint_for_format(row: Mapping[str, Any]) -> str | None:
    """Return the hint for a row without an example. None if `OTHER_FORMATS` has none."""
    return next((hint for column, hint in OTHER_FORMATS.items() if not is_empty(row.get(column))), None)
