"""Overhead of the backend verl: its start, and the conversion of a batch for workers, next to padding as in verl.

python benchmarks/verl_overhead.py    # about two minutes

The baseline follows verl's agent loops and its trainer. Lists are padded to the longest prompt and response of the
configuration, prompts on the left and responses on the right. Rows become one batch with masks and positions.
`left_right_2_no_padding` removes the padding before workers are called. verl pads with the tokenizer, which is slower
than this code. Both sides alternate in one run on one machine. The result is the ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests/tools"))
os.environ["VERL_PLATFORM"] = "cpu"
os.environ.setdefault("VERL_LOGGING_LEVEL", "WARNING")

import numpy as np
import torch
from measuring import keep_freed_memory
from tensordict import TensorDict
from torch import Tensor

from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_verl.backend import silence_libraries
from rllm_verl.rows import MicroBatching, ShardedRows

PAD_ID = 0


@dataclass(frozen=True)
class RowLimits:
    """Maximum numbers of tokens in the configuration."""

    prompt: int
    response: int


@dataclass(frozen=True)
class ListRow:
    """A row of verl's agent loops (`AgentLoopOutput`)."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float]


def padded_first(rows: Sequence[ListRow], limits: RowLimits) -> TensorDict:
    """Return a batch as verl's trainer gives it to its workers.

    Returns:
        (n_row,) nested ``input_ids`` and ``position_ids``; ``prompts``, ``responses``, masks and log-probs padded.
    """
    padded = [_padded_row(row, limits) for row in rows]
    return _ragged({name: torch.cat([row[name] for row in padded]) for name in padded[0]})


def _padded_row(row: ListRow, limits: RowLimits) -> dict[str, Tensor]:
    """Return (1, …) tensors of one row."""
    missing_prompt = limits.prompt - len(row.prompt_ids)
    missing = limits.response - len(row.response_ids)
    prompts = torch.tensor([[PAD_ID] * missing_prompt + row.prompt_ids])
    responses = torch.tensor([row.response_ids + [PAD_ID] * missing])
    attention_mask = torch.tensor(
        [[0] * missing_prompt + [1] * (len(row.prompt_ids) + len(row.response_ids)) + [0] * missing]
    )
    return {
        "prompts": prompts,
        "responses": responses,
        "response_mask": torch.tensor([row.response_mask + [0] * missing]),
        "rollout_log_probs": torch.tensor([row.response_logprobs + [0.0] * missing]),
        "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": attention_mask,
        "position_ids": _positions(attention_mask),
    }


def _positions(attention_mask: Tensor) -> Tensor:
    return (attention_mask.cumsum(dim=1) - 1).clamp(min=0)


def _ragged(tensors: dict[str, Tensor]) -> TensorDict:
    from verl.workers.utils.padding import left_right_2_no_padding

    return left_right_2_no_padding(TensorDict(tensors, batch_size=[len(tensors["input_ids"])]))


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
    rows = ShardedRows.from_batch(batch, np.arange(batch.n_rows), ranks, MicroBatching())
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
    """Return the seconds for the same `n` rows: ours from a batch, ours from lists, and padded from lists."""
    rows = list_rows(n, limits)
    batch = batch_of(rows)
    return time_alternately(
        {
            "ours": lambda: converted(batch, 1),
            "padded": lambda: padded_first(rows, limits),
            "ours from lists": lambda: converted(batch_of(rows), 1),
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


WORDS = (
    *("train", "sum", "rllm/backend=verl", "--profile", "cpu"),
    *("rllm.trainer.total_batches=1", "rllm.trainer.test_freq=-1", "rllm.trainer.val_before_train=false"),
)
BEFORE, LAST = "starting the program", "making the first step"
PHASE = "verl: "
"""Start of the backend's line for a phase that begins."""
SYNCING = "bringing weights to the rollout servers"
FIRST_STEP = "1/"


def start_seconds(directory: Path) -> Mapping[str, float]:
    """Run the command in an empty directory. Return its seconds by phase. The last one begins with moving weights."""
    began = time.monotonic()
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("rllm")), *WORDS],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as lines:
        clocked = list(_clocked(lines))
    if process.wait():
        sys.exit(f"the run failed in {directory}")
    return by_phase(began, clocked)


def by_phase(began: float, lines: Iterable[tuple[float, str]]) -> dict[str, float]:
    """Return the seconds of each phase, from the printed lines of a run and their times."""
    found: dict[str, float] = {}
    phase, since = BEFORE, began
    for now, line in lines:
        if line.startswith(FIRST_STEP):
            return found | {phase: now - since}
        if line.startswith(PHASE):
            found[phase] = now - since
            phase, since = line.removeprefix(PHASE), now
            if phase == SYNCING:
                phase = f"{SYNCING}, {LAST}"
    return found


def _clocked(lines: Iterable[str]) -> Iterator[tuple[float, str]]:
    for line in lines:
        yield time.monotonic(), line.rstrip()


ROWS, LIMITS = 512, RowLimits(prompt=512, response=2048)
FACTORS = (1, 4, 16)
RANKS = 8
MS = 1000


def start() -> None:
    with tempfile.TemporaryDirectory(prefix="rllm-verl-") as directory:
        phases = start_seconds(Path(directory))
    print(f"from the command to the first step: {sum(phases.values()):.1f} s")
    for phase, seconds in phases.items():
        print(f"  {phase}: {seconds:.1f} s")


def conversion(repeats: int) -> None:
    found = {name: seconds * MS for name, seconds in against_padding(ROWS, LIMITS, repeats).items()}
    length = LIMITS.prompt + LIMITS.response
    print(
        f"conversion of {ROWS} rows of {length:,} tokens: {found['padded']:.0f} ms padded first (from verl's lists), "
        f"{found['ours']:.1f} ms ours (from the batch), ratio {found['padded'] / found['ours']:.0f} (target 5)"
    )
    print(
        f"  both from lists: {found['padded']:.0f} ms and {found['ours from lists']:.0f} ms, "
        f"ratio {found['padded'] / found['ours from lists']:.1f}"
    )
    seconds = growth(ROWS, LIMITS, FACTORS, RANKS, repeats)
    each = {rows: value / rows * 1e6 for rows, value in seconds.items()}
    most, fewest = max(each), min(each)
    print(
        f"growth, dealt to {RANKS} ranks: "
        + ", ".join(f"{rows:,} rows {value * MS:.0f} ms ({each[rows]:.0f} µs each)" for rows, value in seconds.items())
        + f"; a row of {most:,} over one of {fewest}: {each[most] / each[fewest]:.2f} (linear is 1)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="repeats of each conversion (default: 5)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    silence_libraries()
    start()
    conversion(arguments.repeats)


if __name__ == "__main__":
    main()
