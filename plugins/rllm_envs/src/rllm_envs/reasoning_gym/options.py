"""Options of the environment `reasoning_gym`. Apart from what plays, so that listing plugins imports nothing."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rllm_core.contracts.plugin import Params

SEEDS = 2**30
"""Seeds of a user are below it. Those of validation begin with it, so that the two splits share no random stream."""
EXAMPLES_FROM = 2 * SEEDS
"""Seeds of examples begin with it, for the same reason."""
LARGEST_SPLIT = 10**6


class ReasoningGymParams(Params):
    """Options of ``reasoning_gym``."""

    generator: str = Field(min_length=1, description="Name of the generator, such as chain_sum.")
    config: dict[str, Any] = Field(
        default_factory=dict, description="Options of the generator, such as {min_terms: 2, max_terms: 3}."
    )
    level: int | None = Field(
        None,
        ge=0,
        description="Level of every attribute of the generator's curriculum, or the highest that an attribute has.",
    )
    curriculum: dict[str, int] = Field(
        default_factory=dict, description="Levels of single attributes, such as {num_digits: 2}; they override `level`."
    )
    train_size: int = Field(1000, gt=0, le=LARGEST_SPLIT, description="Tasks to train on.")
    val_size: int = Field(64, ge=0, le=LARGEST_SPLIT, description="Tasks to validate on.")
    seed: int = Field(
        0,
        ge=0,
        lt=SEEDS,
        description="Seed of the generator. Entry `index` of `seed` is mostly entry 0 of `seed + index`: independent "
        "data needs seeds that are further apart than the sizes.",
    )
    system_prompt: str | None = Field(
        None, min_length=1, description="System message, or the name of one of reasoning-gym's: simple, direct, …"
    )
    template: str = Field(
        "{question}", pattern=r"\{question\}", description="The prompt; {question} is what the generator asks."
    )
    examples: int = Field(
        0,
        ge=0,
        le=32,
        description="Solved entries shown before the question, as earlier turns. They show a small model the form of "
        "an answer.",
    )
    answer: Literal["auto", "tags", "response"] = Field(
        "auto",
        description="What of a reply is the answer: the text between the last <answer> and </answer> (tags), the whole "
        "reply (reply), or the text between the tags where there are some and else the whole reply (auto).",
    )
