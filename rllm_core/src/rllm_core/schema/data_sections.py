"""Sections that backends share: batches, lengths and sampling."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rllm_core.schema.section import (
    ROLLOUT,
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
        description="Training tasks: a dataset's name, or a file to read. null means the environment's own tasks.",
    )
    val_dataset: Annotated[Choice | None, Names("dataset"), ROLLOUT] = Field(
        None,
        description="Validation tasks: a dataset's name, or a file to read. null means the environment's own tasks.",
    )
    train_batch_size: Annotated[PositiveInt, ReadBy(options_of=("rejection",), core=True), TRAINING] = Field(
        64, description="Tasks per training step, at most the number of tasks in the dataset."
    )
    val_batch_size: Annotated[PositiveInt, ROLLOUT] = Field(32, description="Tasks per validation batch.")
    max_prompt_length: Annotated[PositiveInt, ROLLOUT] = Field(
        2048, description="Maximum number of tokens in the prompt of a model call."
    )
    max_response_length: Annotated[PositiveInt, ROLLOUT] = Field(
        2048, description="Maximum number of tokens that one model call may sample."
    )


class TrainSamplingSection(Section):
    """Token sampling in training."""

    temperature: Annotated[float, ReadBy()] = Field(
        1.0, ge=0, description="Sampling temperature. 0 means greedy sampling."
    )
    top_p: Annotated[float, ReadBy()] = Field(1.0, gt=0, le=1, description="Nucleus sampling threshold.")
    top_k: Annotated[int, ReadBy()] = Field(
        -1, ge=-1, description="Sample from the k most likely tokens. -1 means all tokens."
    )


class ValSamplingSection(Section):
    """Token sampling in validation."""

    temperature: float = Field(1.0, ge=0, description="Sampling temperature. 0 means greedy sampling.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling threshold.")
    top_k: int = Field(-1, ge=-1, description="Sample from the k most likely tokens. -1 means all tokens.")


class SamplingSection(Section):
    """Token sampling."""

    train: Annotated[TrainSamplingSection, TRAINING] = section(TrainSamplingSection)
    val: Annotated[ValSamplingSection, ROLLOUT] = section(ValSamplingSection)
