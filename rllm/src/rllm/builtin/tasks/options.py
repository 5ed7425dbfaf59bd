"""Options of `question` and `jsonl`, in a separate module so that listing plugins does not import numpy."""

from __future__ import annotations

from pydantic import Field

from rllm_core.contracts.plugin import Params
from rllm_core.errors import ConfigError

DEFAULT_ID_KEY = "id"
COLUMN = r"\{[A-Za-z_]\w*\}"
"""Pattern of a column's name in a template."""


class QuestionParams(Params):
    """Options of ``question``."""

    prompt: str | None = Field(
        None,
        min_length=1,
        description="Column with the prompt, which is text or a list of chat messages. null: the first of prompt, "
        "question, problem and messages that a task has.",
    )
    system_prompt: str | None = Field(
        None, description="System message. It replaces a system message at the start of the prompt's messages."
    )
    template: str | None = Field(
        None,
        pattern=COLUMN,
        description="Prompt with columns in braces, such as '{question} Answer with a number.'. Braces of LaTeX "
        r"commands, such as \boxed{answer}, stay unchanged. Write {{x}} for {x}.",
    )


class TaskDirectoriesParams(Params):
    """Options of ``tasks``."""

    directory: str = Field(
        min_length=1, description="Directory with one task, or with one subdirectory per task, to train on."
    )
    val_directory: str | None = Field(None, min_length=1, description="The same for tasks to validate on.")


class TaskFileParams(Params):
    """Options of ``jsonl``."""

    path: str = Field(min_length=1, description="File with one JSON object per line, which is the data of one task.")
    id_key: str = Field(
        DEFAULT_ID_KEY, description="Field with the task's id. If no line has this field, ids are line numbers."
    )
    data_source: str | None = Field(
        None,
        min_length=1,
        description="Name of the tasks in validation tables. null: each line's `data_source`, or the file's name "
        "without its suffix.",
    )


def check_question(params: QuestionParams) -> None:
    """Raise ConfigError if `prompt` and `template` are both set."""
    if params.prompt is not None and params.template is not None:
        raise ConfigError(
            "conflicting-keys",
            "rllm.env.env_args.prompt and rllm.env.env_args.template both set the prompt of environment 'question'.",
            f"Set only one of the two. A template contains the column itself: {{{params.prompt}}}.",
        )
