"""Validation: the results of rollouts at all validation tasks."""

from __future__ import annotations

from collections.abc import Sequence

from rllm.runs.validation_metrics import validation_metrics
from rllm_core.contracts.engine import SamplingParams
from rllm_core.contracts.stage import RolloutRequest
from rllm_core.data.types import Episode, Task
from rllm_core.rollout.runner import RolloutRunner
from rllm_core.schema.run_config import RunConfig
from rllm_core.seeding import derive_seed

BEFORE_ALL_BATCHES = -1
"""Priority of validation. Training waits for it, so its rollouts run before those for later batches."""


async def validate(runner: RolloutRunner, tasks: Sequence[Task], config: RunConfig) -> dict[str, float]:
    """Return the ``val/…`` metrics. All validations use the same seeds, so only the weights differ between them."""
    episodes: list[Episode] = []
    size = config.data.val_batch_size
    for start in range(0, len(tasks), size):
        episodes += await runner.run(validation_order(tasks[start : start + size], config))
    return validation_metrics(episodes, config.rllm.rollout.n_val)


def validation_order(tasks: Sequence[Task], config: RunConfig) -> RolloutRequest:
    """Return the request for validation rollouts. A rollout depends on its task and number, not on other tasks."""
    sampling = SamplingParams(
        max_tokens=config.data.max_response_length,
        seed=derive_seed(config.rllm.trainer.seed, "validation"),
        **config.sampling.val.model_dump(),
    )
    return RolloutRequest(
        tasks=tasks, rollouts=config.rllm.rollout.n_val, sampling=sampling, label="val", priority=BEFORE_ALL_BATCHES
    )
