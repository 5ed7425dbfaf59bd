"""Validation of `rllm prefer`: the loss and the accuracy of preferences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from rllm.builtin.preferences.comparison import MIN_PROMPTS, compare, count_prompts
from rllm.builtin.preferences.options import PreferParams
from rllm.builtin.preferences.stages import preference_groups
from rllm.builtin.supervised.options import ExamplesParams
from rllm.rows.row_limit import RowFitter, RowLimit, report_rows
from rllm_core.contracts.backend import Backend
from rllm_core.contracts.engine import RolloutEngine
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Task, TrajectoryGroup
from rllm_core.notices import warn_once


async def validate_preferences(
    backend: Backend,
    engine: RolloutEngine,
    tasks: Sequence[Task],
    size: int,
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
        for batch in map(build_batch, _batches(groups, size, smallest)):
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
    return found | report_rows(fitters)


def _batches(groups: Sequence[TrajectoryGroup], size: int, smallest: int) -> list[Sequence[TrajectoryGroup]]:
    """Cut groups into batches with `size` groups. If fewer than `smallest` are left, they join the last batch."""
    size = max(size, smallest)
    ends = [*range(size, len(groups) - smallest + 1, size), len(groups)]
    return [groups[start:end] for start, end in pairwise([0, *ends]) if end > start]
