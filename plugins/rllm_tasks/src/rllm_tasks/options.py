"""Options of the environment `question`. Apart from what plays, so that listing plugins imports no numpy."""

from __future__ import annotations

from pydantic import Field

from rllm_core.contracts.plugin import Params
from rllm_core.errors import ConfigError

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


def check_question(params: QuestionParams) -> None:
    """Raises ConfigError for options that exclude each other."""
    if params.prompt is not None and params.template is not None:
        raise ConfigError(
            "rllm.env.env_args.prompt and rllm.env.env_args.template both say what environment 'question' asks.",
            f"Set one of the two; a template names the column itself: {{{params.prompt}}}.",
        )
