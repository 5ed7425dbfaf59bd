"""Cost of a durable row: ``python benchmarks/record.py [SECONDS]`` prints one line per measurement.

Rows have 4 kB or 40 kB. 1, 32 or 200 writers store them, and each waits for its row before it adds the next. Next to
this is a commit per row, synced alike. CPU time is the process's, including encoding and event loop. The last line is
the bytes of a conversation of 50 turns and 30,500 tokens.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from rllm_gateway.calls import CallRow, CallStore, EndRow, RewardRow, SessionRow
from rllm_gateway.calls.tables import INSERT, encoded

WRITERS = (1, 32, 200)
SIZES = {"4 kB": 4_000, "40 kB": 40_000}
TURNS, SYSTEM_TOKENS, RESPONSE_TOKENS, TURN_TOKENS = 50, 500, 400, 200
CHARACTERS_PER_TOKEN = 4
TARGET_BYTES = 500_000
_WORDS = ("the", "number", "is", "lower", "than", "what", "you", "said", "try", "again", "file", "error", "line")
_random = np.random.default_rng(0)


def session(id: str) -> SessionRow:
    return SessionRow(
        id=id,
        run="benchmark",
        rollout=f"task:{id}",
        retry=0,
        metadata={"task": 7},
        key_hash="0" * 64,
        opened=time.time(),
    )


def text(characters: int) -> str:
    """Return text of words, some of them rare."""
    words = list[str]()
    while sum(map(len, words)) + len(words) < characters:
        words.append(str(_random.choice(_WORDS)) if _random.random() < 0.8 else f"{_random.integers(1 << 30):x}")
    return " ".join(words)[:characters]


def turn(id: str, session: str, parent: str | None, prompt: int, response: int, said: str, answer: str) -> CallRow:
    """Return a call with `prompt` new and `response` sampled tokens."""
    return CallRow(
        id=id,
        session=session,
        role="agent",
        parent=parent,
        prompt_digest=f"{id:0>32}",
        new_ids=_random.integers(0, 150_000, prompt).astype(np.int32),
        response_ids=_random.integers(0, 150_000, response).astype(np.int32),
        logprobs=-_random.exponential(size=response).astype(np.float32),
        weight_version=3,
        finish_reason="stop",
        started=time.time(),
        seconds=0.5,
        parameters={"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_tokens": 512, "seed": 1 << 60},
        messages=[{"role": "user", "content": said}],
        response={"role": "assistant", "content": answer},
        sent={"model": "policy", "temperature": 0.7, "stream": True, "tools": [{"name": "bash", "text": "x" * 2000}]},
        outcomes={"temperature": "overruled", "stream": "honored", "tools": "honored"},
    )


async def group_commits(path: Path, row: CallRow, writers: int, seconds: float) -> tuple[float, float]:
    """Return rows per second and CPU seconds per row."""
    ids = count()
    with CallStore.open(path) as store:
        await store.add(session("s"))
        began, cpu = time.perf_counter(), time.process_time()

        async def write() -> None:
            while time.perf_counter() - began < seconds:
                await store.add(renamed(row, f"{next(ids)}"))

        await asyncio.gather(*(write() for _ in range(writers)))
        rows = next(ids)
        return rows / (time.perf_counter() - began), (time.process_time() - cpu) / rows


def renamed(row: CallRow, id: str) -> CallRow:
    return CallRow(**{**vars(row), "id": id})


def commits_per_row(path: Path, row: CallRow, seconds: float) -> tuple[float, float]:
    """Return the same for a commit per row."""
    CallStore.open(path).close()
    rows = 0
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        insert(connection, session("s"))
        began, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - began < seconds:
            connection.execute("BEGIN IMMEDIATE")
            insert(connection, renamed(row, str(rows)))
            connection.execute("COMMIT")
            rows += 1
        return rows / (time.perf_counter() - began), (time.process_time() - cpu) / rows


def insert(connection: sqlite3.Connection, row: Any) -> None:
    for record in encoded(row):
        connection.execute(INSERT[record.table], record.values)


async def conversation(path: Path) -> int:
    """Store a conversation with a reward and an end. Return its number of tokens."""
    tokens = 0
    with CallStore.open(path) as store:
        await store.add(session("s"))
        parent = None
        for number in range(TURNS):
            prompt = SYSTEM_TOKENS + TURN_TOKENS if number == 0 else TURN_TOKENS
            said, answer = text(prompt * CHARACTERS_PER_TOKEN), text(RESPONSE_TOKENS * CHARACTERS_PER_TOKEN)
            await store.add(turn(f"c{number}", "s", parent, prompt, RESPONSE_TOKENS, said, answer))
            parent = f"c{number}"
            tokens += prompt + RESPONSE_TOKENS
        await store.add(RewardRow(session="s", role="agent", value=1.0, at=time.time()))
        await store.add(EndRow(session="s", ending="env_done", at=time.time()))
    return tokens


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        directory = Path(name)
        for size, characters in SIZES.items():
            row = turn("c", "s", None, characters // 40, characters // 80, text(characters // 2), text(characters // 4))
            rate, cpu = commits_per_row(directory / f"single {size}", row, seconds)
            print(f"{size}, a commit per row: {rate:,.0f} rows/s, {cpu * 1e6:,.0f} µs of CPU per row")
            for writers in WRITERS:
                rate, cpu = asyncio.run(group_commits(directory / f"{size} {writers}", row, writers, seconds))
                print(f"{size}, {writers} writers: {rate:,.0f} rows/s, {cpu * 1e6:,.0f} µs of CPU per row")
        empty, held = directory / "empty", directory / "conversation"
        CallStore.open(empty).close()
        tokens = asyncio.run(conversation(held))
        size_of_it = held.stat().st_size - empty.stat().st_size
        print(f"{TURNS} turns, {tokens:,} tokens: {size_of_it:,} bytes (target {TARGET_BYTES:,})")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
