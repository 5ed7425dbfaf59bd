"""Options of the rewards, in a separate module from the scoring code so that listing plugins stays fast."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from rllm_core.contracts.plugin import Params


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"it is not a regular expression: {error}") from error
    return pattern


def _has_a_group(pattern: str) -> str:
    if not re.compile(pattern).groups:
        raise ValueError("it has no group: put the compared part in (parentheses)")
    return pattern


def _is_in_a_file(function: str) -> str:
    # Accept a file without a function here. Reading the file then reports the functions in it.
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
        description="Column with the answer, or a list of right answers. Use dots for nested keys, such as "
        "reward_model.ground_truth.",
    )


class ExactParams(AnswerParams):
    """Options of ``exact``."""

    ignore_case: bool = Field(True, description="Ignore the difference between upper and lower case.")


class ChoiceParams(AnswerParams):
    """Options of ``choice``."""

    letters: str = Field(
        "ABCDE", pattern="^[A-Z]{2,26}$", description="Option letters. An integer in the column is an index from 0."
    )


class RegexParams(AnswerParams):
    """Options of ``regex``."""

    pattern: Annotated[Pattern, AfterValidator(_has_a_group)] = Field(
        description=r"Pattern to find, such as 'answer is (\d+)'. The first group of the last match is the answer."
    )
    deadline: Deadline = Field(5.0, description="Seconds that one match may take before it is killed.")


class FormatParams(Params):
    """Options of ``format``."""

    pattern: Pattern = Field(
        description="Pattern that the whole response must match, including its reasoning. White space around it is "
        "ignored. A dot matches line breaks too."
    )
    deadline: Deadline = Field(5.0, description="Seconds that one match may take before it is killed.")


class LengthParams(Params):
    """Options of ``length``."""

    target: int = Field(gt=0, description="Number of tokens that a response should have.")
    shorter_is_fine: bool = Field(False, description="Do not penalize responses below the target.")


class MathParams(AnswerParams):
    """Options of ``math``."""

    deadline: Deadline = Field(5.0, description="Seconds that one comparison may take before it is killed.")


class PythonParams(Params):
    """Options of ``python``."""

    function: Annotated[str, AfterValidator(_is_in_a_file)] = Field(description="File and function: rewards.py:score.")
    deadline: float = Field(
        60.0, gt=0, le=3600, description="Seconds that a call may take for each of its rollouts before it is killed."
    )
    processes: int = Field(
        8,
        ge=0,
        le=256,
        description="Maximum number of processes that call a plain function. Each starts on demand. 0: use threads of "
        "the run, which cannot be killed. The run itself awaits coroutine functions.",
    )
