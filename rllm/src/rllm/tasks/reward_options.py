"""Options of the rewards. Apart from what scores, so that listing plugins stays cheap."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from rllm_core.contracts.plugin import Params


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"it is no regular expression: {error}") from error
    return pattern


def _has_a_group(pattern: str) -> str:
    if not re.compile(pattern).groups:
        raise ValueError("it has no group: put what is compared in (parentheses)")
    return pattern


def _is_in_a_file(function: str) -> str:
    # A file alone passes: whoever reads the file says which functions it has.
    if not function.endswith(".py") and not function.rpartition(":")[0].endswith(".py"):
        raise ValueError("write FILE.py:FUNCTION, such as rewards.py:score")
    return function


Deadline = Annotated[float, Field(gt=0, le=60)]
Pattern = Annotated[str, AfterValidator(_compiles)]


class AnswerParams(Params):
    """Options of rewards that compare a reply with a column."""

    column: str = Field(
        "answer",
        min_length=1,
        description="Column that holds the answer, or a list of answers of which one is enough; dots reach into it: "
        "reward_model.ground_truth.",
    )


class ExactParams(AnswerParams):
    """Options of ``exact``."""

    ignore_case: bool = Field(True, description="Whether upper and lower case are the same.")


class ChoiceParams(AnswerParams):
    """Options of ``choice``."""

    letters: str = Field(
        "ABCDE", pattern="^[A-Z]{2,26}$", description="The options. A whole number in the column counts them from 0."
    )


class RegexParams(AnswerParams):
    """Options of ``regex``."""

    pattern: Annotated[Pattern, AfterValidator(_has_a_group)] = Field(
        description=r"What to look for, such as 'answer is (\d+)'; the first group of the last match is the answer."
    )
    deadline: Deadline = Field(5.0, description="Seconds that one match may take before it is killed.")


class FormatParams(Params):
    """Options of ``format``."""

    pattern: Pattern = Field(
        description="What the whole reply must match, reasoning included, white space around it aside; a dot matches "
        "line breaks too."
    )
    deadline: Deadline = Field(5.0, description="Seconds that one match may take before it is killed.")


class LengthParams(Params):
    """Options of ``length``."""

    target: int = Field(gt=0, description="Tokens that a reply should have.")
    shorter_is_fine: bool = Field(False, description="Whether replies below the target cost nothing.")


class MathParams(AnswerParams):
    """Options of ``math``."""

    deadline: Deadline = Field(5.0, description="Seconds that one comparison may take before it is killed.")


class PythonParams(Params):
    """Options of ``python``."""

    function: Annotated[str, AfterValidator(_is_in_a_file)] = Field(description="File and function: rewards.py:score.")
    deadline: float = Field(60.0, gt=0, le=3600, description="Seconds that one call may take before it is killed.")
    processes: int = Field(
        8,
        ge=0,
        le=256,
        description="Most processes that call a plain function, each started when it is needed; 0: threads of the run "
        "itself, which cannot be killed. Coroutine functions are awaited in the run.",
    )
