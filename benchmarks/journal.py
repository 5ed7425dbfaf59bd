"""CPU cost of the journal, and its gain: ``python benchmarks/journal.py [STEPS | kills [COUNT]]``.

The first value is the journal's share of a run of `guess`: digests, records, writes and syncs over all CPU time of the
process while it trains. The second compares a record of the journal with a row of the gateway's store of calls, for the
same call. `kills`: runs that are killed at random instants and resumed (`journal_kills.py`).
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
from journal_kills import kills

from rllm_core import AgentTrainer
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.observer import Observer
from rllm_gateway.calls import CallRow, CallStore, SessionRow
from rllm_record.journal import engine as journal_engine
from rllm_record.journal.records import checksum_of_call, encoded
from rllm_record.journal.segments import Segments

CALLS = 5000
PROMPT, RESPONSE = np.arange(40, dtype=np.int32), np.arange(8, dtype=np.int32)
LOGPROBS = np.full(8, -0.5, np.float32)


class Clock(Observer):
    """CPU seconds of the process between the first step and the last one."""

    seconds = 0.0

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        self._begun = time.process_time()

    def on_train_end(self, global_step: int) -> None:
        self.seconds = time.process_time() - self._begun


@contextmanager
def timed(places: list[tuple[Any, str]]) -> Iterator[dict[str, float]]:
    """Measure the calling thread's CPU seconds in functions, by name."""
    spent: dict[str, float] = {}
    originals = [(owner, name, getattr(owner, name)) for owner, name in places]

    def timing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any) -> Any:
            begun = time.thread_time()
            try:
                return function(*arguments)
            finally:
                spent[name] = spent.get(name, 0.0) + time.thread_time() - begun

        return call

    for owner, name, function in originals:
        setattr(owner, name, timing(name, function))
    try:
        yield spent
    finally:
        for owner, name, function in originals:
            setattr(owner, name, function)


def share_of_a_run(steps: int, directory: str) -> None:
    trainer = {
        "total_batches": steps,
        "output_dir": directory,
        "observers": ["journal"],
        "logger": [],
        "test_freq": -1,
        "val_before_train": False,
    }
    config = {"rllm": {"env": {"name": "guess"}, "trainer": trainer}}
    clock = Clock()
    places = [
        (journal_engine, "checksum_of_call"),
        (journal_engine, "encoded"),
        *((Segments, name) for name in ("append", "calls", "sync", "counts", "drop_before")),
    ]
    with timed(places) as spent:
        AgentTrainer(config=config, observers=[clock]).train()
    journal = sum(spent.values())
    print(f"share of a step of guess: {journal / clock.seconds:.2%} ({steps} steps; in it {_parts(spent, journal)})")


def _parts(spent: dict[str, float], whole: float) -> str:
    return ", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in spent.items())


def cpu_of_records(directory: Path) -> float:
    segments, sampling = Segments(directory, "benchmark"), SamplingParams(max_tokens=8, task_batch=0)
    completion = Completion(token_ids=RESPONSE, logprobs=LOGPROBS, finish_reason="stop", weight_version=0)
    begun = time.process_time()
    for seed in range(CALLS):
        segments.append(0, encoded(seed, checksum_of_call(PROMPT, sampling), completion))
    segments.sync()
    return (time.process_time() - begun) / CALLS


async def cpu_of_rows(path: Path) -> float:
    with CallStore.open(path) as store:
        await store.add(SessionRow(id="s", run="run", rollout="task:0", retry=0, metadata={}, key_hash="k", opened=0.0))
        begun = time.process_time()
        rows = [
            CallRow(
                id=str(number),
                session="s",
                role="agent",
                parent=None,
                prompt_digest="0" * 32,
                new_ids=PROMPT,
                response_ids=RESPONSE,
                logprobs=LOGPROBS,
                weight_version=0,
                finish_reason="stop",
                started=0.0,
                seconds=1.0,
                parameters={},
                messages=[],
                response=None,
                sent={},
                outcomes={},
            )
            for number in range(CALLS)
        ]
        await asyncio.gather(*map(store.add, rows))
        return (time.process_time() - begun) / CALLS


def main() -> None:
    if sys.argv[1:2] == ["kills"]:
        sys.exit(kills(int(sys.argv[2]) if len(sys.argv) > 2 else 200))
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as directory:
        share_of_a_run(steps, directory)
        record, row = (
            cpu_of_records(Path(directory) / "journal"),
            asyncio.run(cpu_of_rows(Path(directory) / "calls.db")),
        )
    print(f"a row of the store of calls costs {row / record:.1f} times a record of the journal")


if __name__ == "__main__":
    main()
