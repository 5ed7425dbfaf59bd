"""Validation: the results of rollouts at all validation tasks, or the loss of examples or preferences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from rllm.preferences.comparison import MIN_PROMPTS, compare, count_prompts
from rllm.preferences.options import PreferParams
from rllm.preferences.stages import preference_groups
from rllm.runs.validation_metrics import validation_metrics
from rllm.supervised.options import ExamplesParams
from rllm.supervised.row_limit import RowFitter, RowLimit
from rllm.supervised.stages import as_supervised, make_examples
from rllm_core.contracts.backend import Backend
from rllm_core.contracts.engine import RolloutEngine, SamplingParams
from rllm_core.contracts.rollout import RolloutRequest
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Episode, Task, TrajectoryGroup
from rllm_core.notices import warn_once
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


async def validate_examples(
    backend: Backend, engine: RolloutEngine, tasks: Sequence[Task], config: RunConfig, params: ExamplesParams
) -> dict[str, float]:
    """Return ``val/<data_source>/loss``: the mean of -logprob over the trained tokens, in nats.

    Also return the numbers of rows that are cut or dropped, if any.
    """
    sums: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    limit = RowLimit.lowest(params, engine.max_context)
    fitters: dict[str, RowFitter] = defaultdict(lambda: RowFitter(limit))
    size = config.data.val_batch_size
    for start in range(0, len(tasks), size):
        made = [each for task in tasks[start : start + size] for each in make_examples(task, engine.renderer, params)]
        episodes = [fitters[each.data_source].fit(each) for each in made]
        groups = [TrajectoryGroup(group_id=each.id, trajectories=each.trajectories) for each in episodes]
        batch = as_supervised(build_batch(groups))
        if not batch.n_rows:
            continue
        # The backend computes log-probs that no sampler reported.
        logprobs = (await backend.process(batch, frozenset({"old_logprobs"}))).old_logprobs
        assert logprobs is not None
        owners = np.repeat(batch.group, batch.row_lengths)
        for index, episode in enumerate(episodes):
            trained = batch.loss_mask & (owners == index)
            sums[episode.data_source] -= float(logprobs[trained].sum(dtype=np.float64))
            counts[episode.data_source] += int(trained.sum())
    found = {f"val/{source}/loss": sums[source] / count for source, count in counts.items() if count}
    return found | _reports(fitters)


async def validate_preferences(
    backend: Backend,
    engine: RolloutEngine,
    tasks: Sequence[Task],
    config: RunConfig,
    params: ExamplesParams,
    preferences: PreferParams,
) -> dict[str, float]:
    """Return ``val/<data_source>/<metric>`` for the metrics of stage `prefer`: means over the rows of the data.

    Also return the numbers of rows that are cut or dropped, if any.
    """
    by_source: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        by_source[task.data_source].append(task)
    found: dict[str, float] = {}
    limit = RowLimit.lowest(params, engine.max_context)
    fitters = {source: RowFitter(limit) for source in by_source}
    for source, rows in by_source.items():
        sums: dict[str, float] = defaultdict(float)
        counts: dict[str, int] = defaultdict(int)
        _, groups = preference_groups(rows, engine.renderer, params, fitters[source])
        smallest = MIN_PROMPTS[preferences.loss]
        for batch in map(build_batch, _batches(groups, config.data.val_batch_size, smallest)):
            if count_prompts(batch) < smallest:
                warn_once(
                    f"{batch.n_rows} rows of {source!r} are not validated on, because loss kto compares "
                    "completions of 2 prompts or more. Add rows with other prompts, or increase data.val_batch_size."
                )
                continue
            for name, (total, count) in (await compare(backend, batch, preferences)).totals.items():
                sums[name] += total
                counts[name] += count
        found |= {f"val/{source}/{name}": sums[name] / counts[name] for name in sums}
    return found | _reports(fitters)


def _reports(fitters: Mapping[str, RowFitter]) -> dict[str, float]:
    reports = [fitter.report(f"val/{source}") for source, fitter in fitters.items()]
    return {name: count for report in reports for name, count in report.items()}


def _batches(groups: Sequence[TrajectoryGroup], size: int, smallest: int) -> list[Sequence[TrajectoryGroup]]:
    """Cut groups into batches with `size` groups. If fewer than `smallest` are left, they join the last batch."""
    size = max(size, smallest)
    ends = [*range(size, len(groups) - smallest + 1, size), len(groups)]
    return [groups[start:end] for start, end in pairwise([0, *ends]) if end > start]


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
