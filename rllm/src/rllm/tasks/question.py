"""`question`: one prompt and one answer per task. It gives no reward itself. Set ``rllm.reward`` for that."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rllm.tasks.options import QuestionParams
from rllm_core.contracts.environment import Environment, Outcome
from rllm_core.data.messages import Message
from rllm_core.errors import ConfigError

PROMPT_COLUMNS = ("prompt", "question", "problem", "messages")
"""Columns that are tried for the prompt, in this order."""
ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles of messages in OpenAI's chat API."""
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
            ConfigError: a column is missing from the task, or contains no prompt.
        """
        template, system = self._params.template, self._params.system_prompt
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
    value = task[column]
    if isinstance(value, str):
        return value
    return _messages(value, column)


def _messages(value: Any, column: str) -> list[Message]:
    hint = f"A prompt is text, or a list of messages {{role, content}}. Set {PROMPT_KEY} to a column with prompts."
    shaped = isinstance(value, Sequence) and value and all(isinstance(each, Mapping) for each in value)
    if not shaped or not all("role" in each and "content" in each for each in value):
        raise ConfigError(
            "bad-prompt", f"Column {column!r} of a task contains {value!r:.80}, which is not a prompt.", hint
        )
    for each in value:
        if each["role"] not in ROLES:
            said = f"a message of role {each['role']!r}"
            raise ConfigError(
                "bad-prompt", f"Column {column!r} of a task has {said}.", f"Roles are {', '.join(ROLES)}."
            )
        if not isinstance(each["content"], str | list | tuple | None):
            said = f"a message with the content {each['content']!r:.80}"
            raise ConfigError(
                "bad-prompt", f"Column {column!r} of a task has {said}.", "Give text, or a list of parts."
            )
    if value[-1]["role"] == "assistant":
        raise ConfigError(
            "bad-prompt",
            f"Column {column!r} of a task ends with an assistant message, which the model must write itself.",
            "Remove the last message, and put its text into a column that a reward reads.",
        )
    return list(value)


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
