"""`question`: one prompt and one answer per task. It gives no reward itself. Set ``rllm.reward`` for that."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from rllm.rows.columns import check_columns, check_no_tools
from rllm.rows.messages import read_chat_text, read_messages
from rllm.rows.problem import RowError, naming, shown
from rllm_core.contracts.environment import Environment, Outcome
from rllm_core.contracts.params import Params
from rllm_core.data.messages import Message
from rllm_core.errors import ConfigError

COLUMN = r"\{[A-Za-z_]\w*\}"
"""Pattern of a column's name in a template."""


class QuestionParams(Params):
    """Options of ``question``."""

    prompt: str | None = Field(None, min_length=1)
    """Column with the prompt, which is text or a list of chat messages. null: the first of prompt, question, problem
    and messages that a task has."""
    system_prompt: str | None = None
    """System message. It replaces a system message at the start of the prompt's messages."""
    template: str | None = Field(None, pattern=COLUMN)
    r"""Prompt with columns in braces, such as '{question} Answer with a number.'. Braces of LaTeX commands, such as
    \boxed{answer}, stay unchanged. Write {{x}} for {x}."""


def check_question(params: QuestionParams) -> None:
    """Raise ConfigError if `prompt` and `template` are both set."""
    if params.prompt is not None and params.template is not None:
        raise ConfigError(
            "conflicting-keys",
            "rllm.env.env_args.prompt and rllm.env.env_args.template both set the prompt of environment 'question'.",
            f"Set only one of the two. A template contains the column itself: {{{params.prompt}}}.",
        )


PROMPT_COLUMNS = ("prompt", "question", "problem", "messages")
"""Columns that are tried for the prompt, in this order."""
PLACES = re.compile(r"\\[A-Za-z]+\{\w*\}|\{\{\w+\}\}|\{(?P<column>[A-Za-z_]\w*)\}")
"""Pattern with three alternatives. A LaTeX command with its braces stays unchanged, because the answer must not be put
into ``\\boxed{answer}``. A name in double braces gets single braces. A name in single braces is a column."""
PROMPT_KEY = "rllm.env.env_args.prompt"
TEMPLATE_KEY = "rllm.env.env_args.template"


class Question(Environment):
    """Environment with the prompt from a task's data. The rollout ends with the first response."""

    def __init__(self, params: QuestionParams) -> None:
        self._params = params

    def reset(self, task: Mapping[str, Any]) -> str | Sequence[Message]:
        """Return the prompt, as text or as chat messages.

        Raises:
            ConfigError: a column is missing from the task, contains no prompt, or has a part that cannot be used.
        """
        template, system = self._params.template, self._params.system_prompt
        with naming("A task cannot be asked"):
            used = () if template is None else PLACES.findall(template)
            check_columns(task, {*used, self._params.prompt, None if system is None else "system"})
            check_no_tools(
                task, "tools of a run are functions", "Remove the column. Give tools with --tools FILE.py:FUNCTION."
            )
            asked = _prompt(task, self._params.prompt) if template is None else _filled(template, task)
        if isinstance(asked, str) and not asked.strip():
            raise ConfigError(
                "bad-prompt", "A task has an empty prompt.", "Remove tasks with an empty prompt from the data."
            )
        if system is None:
            return asked
        messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        first = 1 if messages[0]["role"] == "system" else 0
        return [{"role": "system", "content": system}, *messages[first:]]

    def step(self, action: str) -> Outcome:
        return Outcome(done=True)


def first_prompt(params: QuestionParams, task: Mapping[str, Any]) -> str | Sequence[Message]:
    """Return the prompt of a task. Raise ConfigError as `Question.reset`."""
    return Question(params).reset(task)


def prompt_column(task: Mapping[str, Any]) -> str | None:
    """Return the first of `PROMPT_COLUMNS` that the task has, or None."""
    return next((name for name in PROMPT_COLUMNS if task.get(name) is not None), None)


def _prompt(task: Mapping[str, Any], chosen: str | None) -> str | list[Message]:
    column = chosen or prompt_column(task)
    if column is None or task.get(column) is None:
        wanted = f"column {chosen!r}" if chosen else f"column {', '.join(PROMPT_COLUMNS[:-1])} or {PROMPT_COLUMNS[-1]}"
        raise ConfigError(
            "missing-column", f"A task has no {wanted}; it has {_names(task)}.", f"Set {PROMPT_KEY}=COLUMN."
        )
    value = read_chat_text(task[column])
    if isinstance(value, str) and column != "messages":
        return value
    if not isinstance(value, list | tuple | str):
        raise RowError(column, f"{shown(value)} instead of text or a list of messages", f"Set {PROMPT_KEY}=COLUMN.")
    return _messages(value, column)


def _messages(value: Any, column: str) -> list[Message]:
    messages = read_messages(value, column).messages
    if messages[-1]["role"] == "assistant":
        raise RowError(
            column,
            "ends with an assistant message, which the model must write itself",
            "Remove the last message, and put its text into a column that a reward reads.",
        )
    return messages


def _filled(template: str, task: Mapping[str, Any]) -> str:
    def value(match: re.Match[str]) -> str:
        column = match["column"]
        if column is None:
            return match[0].removeprefix("{").removesuffix("}") if match[0].startswith("{{") else match[0]
        found = task.get(column)
        if not isinstance(found, str | int | float):
            what = f"is {found!r:.80} and not text" if column in task else f"does not exist. It has {_names(task)}"
            raise ConfigError(
                "bad-prompt",
                f"{TEMPLATE_KEY} uses column {column!r} of a task, which {what}.",
                f"Write {{{{{column}}}}} in {TEMPLATE_KEY} if you mean braces, or use a column with text.",
            )
        return str(found)

    return PLACES.sub(value, template)


def _names(task: Mapping[str, Any]) -> str:
    return ", ".join(sorted(task)) or "no columns"
