"""Validation of `rllm sft`: the loss of examples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from rllm.builtin.supervised.options import ExamplesParams
from rllm.builtin.supervised.stages import as_supervised, make_examples
from rllm.rows.row_limit import RowFitter, RowLimit, report_rows
from rllm_core.contracts.backend import Backend
from rllm_core.contracts.engine import RolloutEngine
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Task, TrajectoryGroup


async def validate_examples(
    backend: Backend, engine: RolloutEngine, tasks: Sequence[Task], size: int, params: ExamplesParams
) -> dict[str, float]:
    """Return ``val/<data_source>/loss``: the mean of -logprob over the trained tokens, in nats.

    Also return the numbers of rows that are cut or dropped, if any.
    """
    sums: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    limit = RowLimit.lowest(params, engine.max_context)
    fitters: dict[str, RowFitter] = defaultdict(lambda: RowFitter(limit))
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
    return found | report_rows(fitters)
