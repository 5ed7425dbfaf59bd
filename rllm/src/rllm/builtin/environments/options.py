"""Options of the plugins, in a separate module so that listing plugins does not import numpy."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rllm_core.contracts.plugin import Params

JUDGE_PROMPT = "{task}\n{answers}\nWhich answer is right? Reply with its number only."


class GuessParams(Params):
    prompt: str = Field(
        "I am thinking of a whole number from 0 to 15. You have five guesses. "
        "I answer each with lower, higher or correct. Reply with a number only.",
        description="The first message to the player.",
    )


class SumParams(Params):
    largest: int = Field(9, gt=0, description="Maximum of the two numbers. The minimum is 0.")
    prompt: str = Field(
        "What is {a} plus {b}? Reply with a number only.", description="The question. {a} and {b} are the numbers."
    )


class MixedParams(Params):
    environments: dict[str, float | dict[str, Any]] = Field(
        min_length=1,
        description="Environments by name. Each value is the environment's ratio in a batch, or its options with the "
        "ratio, such as {guess: 3, sum: {ratio: 1, largest: 20}}. For a name of your choice, add the option `name`.",
    )


class SolverJudgeParams(Params):
    n_solvers: int = Field(2, gt=0, description="Number of answers that the judge picks from.")
    judge_prompt: str = Field(
        JUDGE_PROMPT,
        pattern=r"\{answers\}",
        description="Prompt for the judge. {task} is the solvers' prompt, {answers} are the numbered answers.",
    )
