"""Options of `question` and `jsonl`, apart from what plays: listing plugins imports no numpy."""

from __future__ import annotations

from pydantic import Field

from rllm_core.contracts.plugin import Params
from rllm_core.errors import ConfigError

DEFAULT_ID_KEY = "id"
COLUMN = r"\{[A-Za-z_]\w*\}"
"""What names a column in a template."""


class QuestionParams(Params):
    """Options of ``question``."""

    prompt: str | None = Field(
        None,
        min_length=1,
        description="Column that holds the prompt, text or a list of chat messages; null means the first of prompt, "
        "question, problem and messages that a task has.",
    )
    system_prompt: str | None = Field(
        None, description="System message; it takes the place of one that the prompt's own messages begin with."
    )
    template: str | None = Field(
        None,
        pattern=COLUMN,
        description="The prompt made of columns, such as '{question} Answer with a number.'. Other braces stay, also "
        r"those of \boxed{answer}; {{x}} is {x}.",
    )


class TaskFileParams(Params):
    """Options of ``jsonl``."""

    path: str = Field(min_length=1, description="The file: one JSON object per line, the data of one task each.")
    id_key: str = Field(
        DEFAULT_ID_KEY, description="Field that holds the task's id; where no line has it, ids are line numbers."
    )
    data_source: str | None = Field(
        None,
        min_length=1,
        description="Name of the tasks in validation tables; null means each line's own `data_source`, else the "
        "file's name without its ending.",
    )


def check_question(params: QuestionParams) -> None:
    """Raises ConfigError for options that exclude each other."""
    if params.prompt is not None and params.template is not None:
        raise ConfigError(
            "conflicting-keys",
            "rllm.env.env_args.prompt and rllm.env.env_args.template both say what environment 'question' asks.",
            f"Set one of the two; a template names the column itself: {{{params.prompt}}}.",
        )
