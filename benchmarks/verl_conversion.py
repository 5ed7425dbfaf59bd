"""Cost of converting a batch into the input of verl's workers: our way, and padded first as in verl."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from verl_padded import ArrayRow, ListRow, RowLimits, from_arrays, from_lists

from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_verl.rows import DealtRows, MicroBatching

VOCABULARY = 30_000


def list_rows(n: int, limits: RowLimits) -> list[ListRow]:
    """Return rows as long as the limits allow, in lists, as inference servers return them."""
    rng = np.random.default_rng(0)
    return [
        ListRow(
            prompt_ids=rng.integers(0, VOCABULARY, limits.prompt).tolist(),
            response_ids=rng.integers(0, VOCABULARY, limits.response).tolist(),
            response_mask=[1] * limits.response,
            response_logprobs=rng.random(limits.response).tolist(),
        )
        for _ in range(n)
    ]


def batch_of(rows: list[ListRow]) -> TokenBatch:
    """Return the core's batch from lists, with its columns filled as for an update."""
    group = TrajectoryGroup(group_id="task:agent", trajectories=[])
    for row in rows:
        trajectory = Trajectory("agent", reward=0.0)
        logprobs = np.asarray(row.response_logprobs, np.float32)
        trajectory.add_step(row.prompt_ids, np.asarray(row.response_ids, np.int32), logprobs)
        group.trajectories.append(trajectory)
    batch = build_batch([group])
    return batch.with_columns(old_logprobs=batch.sampling_logprobs, advantages=batch.sampling_logprobs)


def repeated(batch: TokenBatch, times: int) -> TokenBatch:
    """Return a batch with the rows repeated several times."""
    columns = ("tokens", "loss_mask", "sampling_logprobs", "old_logprobs", "advantages")
    of_rows = ("trajectory", "group", "role", "weight_version")
    lengths = np.tile(batch.row_lengths, times)
    tiled: dict[str, Any] = {name: np.tile(getattr(batch, name), times) for name in columns + of_rows}
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return TokenBatch(**tiled, row_offsets=offsets, roles=batch.roles, groups=batch.groups)


def converted(batch: TokenBatch, ranks: int) -> Any:
    """Return our workers' input for an update, with all its columns, distributed to `ranks`."""
    assert batch.old_logprobs is not None
    assert batch.advantages is not None
    columns = {
        "advantages": batch.advantages,
        "old_logprobs": batch.old_logprobs,
        "sampling_logprobs": batch.sampling_logprobs,
        "weights": batch.sampling_logprobs,
    }
    rows = DealtRows.deal(batch, np.arange(batch.n_rows), ranks, MicroBatching())
    return rows.tensordict(columns, temperature=1.0)


def time_alternately(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each. They are called alternately, after one call that is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if number:
                taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def against_padding(n: int, limits: RowLimits, repeats: int) -> dict[str, float]:
    """Return the seconds for the same `n` rows: ours and padded, each from arrays and from lists."""
    rows = list_rows(n, limits)
    arrays, batch = [ArrayRow.from_lists(row) for row in rows], batch_of(rows)
    return time_alternately(
        {
            "ours": lambda: converted(batch, 1),
            "padded": lambda: from_lists(rows, limits),
            "ours from lists": lambda: converted(batch_of(rows), 1),
            "padded from arrays": lambda: from_arrays(arrays, limits),
        },
        repeats,
    )


def growth(n: int, limits: RowLimits, factors: tuple[int, ...], ranks: int, repeats: int) -> dict[int, float]:
    """Return the seconds of our conversion for `n` times each factor rows, distributed to `ranks`."""
    few = batch_of(list_rows(n, limits))
    batches = {n * factor: repeated(few, factor) for factor in factors}

    def conversion(batch: TokenBatch) -> Callable[[], Any]:
        return lambda: converted(batch, ranks)

    seconds = time_alternately({str(rows): conversion(batch) for rows, batch in batches.items()}, repeats)
    return {int(rows): value for rows, value in seconds.items()}
