"""Sections shared with backends: batches and lengths, and how tokens are drawn."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rllm_core.schema.section import (
    PLAYING,
    TRAINING,
    Choice,
    Names,
    PositiveInt,
    ReadBy,
    Section,
    section,
)


class DataSection(Section):
    """Tasks, batches and lengths."""

    train_dataset: Annotated[Choice | None, Names("dataset")] = Field(
        None,
        description="Training tasks: name of a dataset, or a file that one reads; null means the environment's own.",
    )
    val_dataset: Annotated[Choice | None, Names("dataset"), PLAYING] = Field(
        None,
        description="Validation tasks: name of a dataset, or a file that one reads; null means the environment's own.",
    )
    train_batch_size: Annotated[PositiveInt, ReadBy(options_of=("rejection",), core=True), TRAINING] = Field(
        64, description="Tasks per training step; never more than there are."
    )
    val_batch_size: Annotated[PositiveInt, PLAYING] = Field(32, description="Tasks per validation batch.")
    max_prompt_length: Annotated[PositiveInt, PLAYING] = Field(
        2048, description="Most tokens in the prompt of a model call."
    )
    max_response_length: Annotated[PositiveInt, PLAYING] = Field(
        2048, description="Most tokens one model call may sample."
    )


class TrainSamplingSection(Section):
    """How tokens are drawn in training."""

    temperature: Annotated[float, ReadBy()] = Field(1.0, ge=0, description="Sampling temperature; 0 is greedy.")
    top_p: Annotated[float, ReadBy()] = Field(1.0, gt=0, le=1, description="Nucleus sampling threshold.")
    top_k: Annotated[int, ReadBy()] = Field(-1, ge=-1, description="Sample among the k likeliest tokens; -1 means all.")


class ValSamplingSection(Section):
    """How tokens are drawn in validation."""

    temperature: float = Field(1.0, ge=0, description="Sampling temperature; 0 is greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling threshold.")
    top_k: int = Field(-1, ge=-1, description="Sample among the k likeliest tokens; -1 means all.")


class SamplingSection(Section):
    """How tokens are drawn."""

    train: Annotated[TrainSamplingSection, TRAINING] = section(TrainSamplingSection)
    val: Annotated[ValSamplingSection, PLAYING] = section(ValSamplingSection)
