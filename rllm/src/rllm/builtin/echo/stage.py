"""The stage `echo`: weights of observation tokens in the loss."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise

import numpy as np
from pydantic import Field

from rllm_core.contracts.params import Params
from rllm_core.contracts.stage import StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import TokenBatch


class EchoParams(Params):
    """Options of the stage ``echo``."""

    weight: float = Field(0.1, gt=0)
    """Factor of the mean of -log p over the observation tokens."""
    roles: tuple[str, ...] = Field(("user", "tool"), min_length=1)
    """Roles of the messages to predict. The tokens between two responses are trained if all messages between them have
    such a role."""


class Echo:
    """Adds ``weight`` times the mean of -log p over observation tokens to the loss of each optimizer step.

    Shrivastava et al., ECHO: Terminal Agents Learn World Models for Free, 2026, arXiv:2605.24517.
    """

    def __init__(self, context: StageContext, params: EchoParams) -> None:
        self._params = params

    async def __call__(self, step: TrainStep) -> None:
        batch = step.filled_batch
        weights = np.zeros(len(batch.tokens), np.float32)
        for observation in observations(batch, self._params.roles):
            weights[observation] = self._params.weight
        step.batch = batch.with_columns(observation_weights=weights)
        step.metrics["echo/tokens"] = float(np.count_nonzero(weights))


def observations(batch: TokenBatch, roles: Collection[str]) -> Iterator[slice]:
    """Yield the places in the batch of the tokens between two responses, if their messages have one of the `roles`.

    The first prompt of a row is no observation. Without messages of a step, its roles are unknown.
    """
    trajectories = (trajectory for group in batch.groups for trajectory in group.trajectories)
    for index, trajectory in enumerate(trajectories):
        steps, first_row = trajectory.steps, int(np.searchsorted(batch.trajectory, index))
        sampled = (step.span for step in steps if step.span.end > step.span.response_start)
        segments = sorted({span.segment_start for span in sampled})
        shifts = {start: int(batch.row_offsets[first_row + at]) - start for at, start in enumerate(segments)}
        for before, step in pairwise(steps):
            start = step.span.segment_start
            of_roles = bool(step.messages) and all(message["role"] in roles for message in step.messages)
            if start == before.span.segment_start and start in shifts and of_roles:
                yield slice(shifts[start] + before.span.end, shifts[start] + step.span.response_start)
