"""Options of the plugins. Apart from what plays, so that listing plugins imports no numpy."""

from __future__ import annotations

from pydantic import Field

from rllm_core.contracts.plugin import Params

JUDGE_PROMPT = "{task}\n{answers}\nWhich answer is right? Reply with its number only."


class GuessParams(Params):
    prompt: str = Field(
        "I am thinking of a whole number from 0 to 15. You have five guesses. "
        "I answer each with lower, higher or correct. Reply with a number only.",
        description="What the player is told first.",
    )


class SumParams(Params):
    largest: int = Field(9, gt=0, description="Both numbers are between 0 and this.")
    prompt: str = Field(
        "What is {a} plus {b}? Reply with a number only.", description="The question; {a} and {b} are the numbers."
    )


class SolverJudgeParams(Params):
    n_solvers: int = Field(2, gt=0, description="How many answers the judge picks from.")
    judge_prompt: str = Field(
        JUDGE_PROMPT,
        pattern=r"\{answers\}",
        description="What the judge is told; {task} is what the solvers were told, {answers} the numbered answers.",
    )
