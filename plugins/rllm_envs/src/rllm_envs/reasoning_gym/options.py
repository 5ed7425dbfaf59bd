"""Options of the environment `reasoning_gym`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from rllm_core.contracts.params import Params
from rllm_envs.seeds import LARGEST_SPLIT, SEEDS

EXAMPLES_FROM = 2 * SEEDS
"""First seed of examples, so that no example is a task of a split."""


class ReasoningGymParams(Params):
    """Options of ``reasoning_gym``."""

    generator: str = Field(min_length=1)
    """Name of the generator, such as chain_sum."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Options of the generator, such as {min_terms: 2, max_terms: 3}."""
    level: int | None = Field(None, ge=0)
    """Level of every attribute of the generator's curriculum. An attribute with fewer levels gets its highest level."""
    levels: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Several values of `level` in one run, such as [0, 1, 2]. Each has the same number of tasks. The sampler `levels`
    reads a task's level from the column `level` of its data."""
    curriculum: dict[str, int] = Field(default_factory=dict)
    """Levels of single attributes, such as {num_digits: 2}. They override `level`."""
    train_size: int = Field(1000, gt=0, le=LARGEST_SPLIT)
    """Number of training tasks."""
    val_size: int = Field(64, ge=0, le=LARGEST_SPLIT)
    """Number of validation tasks."""
    seed: int = Field(0, ge=0, lt=SEEDS)
    """Seed of the generator. Entry `index` of `seed` is usually entry 0 of `seed + index`. For independent data, choose
    seeds that are further apart than the sizes."""
    system_prompt: str | None = Field(None, min_length=1)
    """System message, or the name of a reasoning-gym prompt: simple, direct, …"""
    template: str = Field("{question}", pattern=r"\{question\}")
    """The prompt. {question} is the generator's question."""
    examples: int = Field(0, ge=0, le=32)
    """Number of solved entries to show before the question, as earlier turns. They show a small model the format of an
    answer."""
    answer: Literal["auto", "tags", "response"] = "auto"
    """Part of a response that is the answer. tags: the text between the last <answer> and </answer>. response: the
    whole response. auto: the text between the tags, or the whole response if it has no tags."""

    @model_validator(mode="after")
    def _check_levels(self) -> Self:
        if self.levels and self.level is not None:
            raise ValueError("level and levels are both set")
        if len(set(self.levels)) < len(self.levels):
            raise ValueError("levels contains a level twice")
        return self
