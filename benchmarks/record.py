"""Cost of a durable row, of the journal and of telemetry.

``python benchmarks/record.py [rows [SECONDS]] [journal [STEPS]] [telemetry [STEPS]]``

- rows: of 4 kB and 40 kB. 1, 32 or 200 writers store them, and each waits for its row before it adds the next. Next to
  this is a commit per row, synced alike. CPU time is the process's, including encoding and event loop. The last line is
  the bytes of a conversation of 50 turns and 30,500 tokens.
- journal: its share of a run of `guess`: digests, records, writes and syncs over all CPU time of the process while it
  trains. Then a record of the journal, next to a row of the store of calls for the same call.
- telemetry: the share of the observer `telemetry` (its functions and its thread), measured like the journal's. A
  collector runs in a separate process.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from rllm_core import AgentTrainer
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.observer import Observer
from rllm_gateway.calls import CallRow, CallStore, EndRow, RewardRow, SessionRow
from rllm_gateway.calls.tables import INSERT, encode_row
from rllm_record.journal import engine as journal_engine, records
from rllm_record.journal.segments import Segments
from rllm_telemetry.observer import RunSpans
from rllm_telemetry.sending import Sender

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
    """Measure the calling thread's CPU seconds in functions, by name, without the time that the clock takes."""
    spent: dict[str, float] = {}
    originals = [(owner, name, getattr(owner, name)) for owner, name in places]

    def timing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any) -> Any:
            begun = time.thread_time()
            try:
                return function(*arguments)
            finally:
                spent[name] = spent.get(name, 0.0) + time.thread_time() - begun - clock

        return call

    clock = 0.0
    empty = timing("clock", lambda: None)
    for _ in range(CALLS):
        empty()
    clock = spent.pop("clock") / CALLS
    for owner, name, function in originals:
        setattr(owner, name, timing(name, function))
    try:
        yield spent
    finally:
        for owner, name, function in originals:
            setattr(owner, name, function)


def print_share(observer: str, steps: int, directory: str, places: Iterable[tuple[Any, str]]) -> None:
    """Print the share of an observer's functions in the CPU time of the steps of a run."""
    trainer = {
        "total_batches": steps,
        "output_dir": directory,
        "observers": [observer],
        "logger": [],
        "test_freq": -1,
        "val_before_train": False,
    }
    clock = Clock()
    with timed(places) as spent:
        AgentTrainer(config={"rllm": {"env": {"name": "guess"}, "trainer": trainer}}, observers=[clock]).train()
    whole = sum(spent.values())
    parts = ", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in spent.items())
    print(f"share of {observer} in a step of guess: {whole / clock.seconds:.2%} ({steps} steps; in it {parts})")


def cpu_of_records(directory: Path) -> float:
    segments, sampling = Segments(directory, "benchmark"), SamplingParams(max_tokens=8, task_batch=0)
    completion = Completion(token_ids=RESPONSE, logprobs=LOGPROBS, finish_reason="stop", weight_version=0)
    begun = time.process_time()
    for seed in range(CALLS):
        segments.append(0, records.encode_call(seed, records.checksum_of_call(PROMPT, sampling), completion))
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
    for record in encode_row(row):
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


def print_rows(seconds: float) -> None:
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


def print_journal(steps: int) -> None:
    places = [
        (journal_engine, "checksum_of_call"),
        (journal_engine, "encode_call"),
        *((Segments, name) for name in ("append", "calls", "sync", "counts", "drop_before")),
    ]
    with tempfile.TemporaryDirectory() as directory:
        print_share("journal", steps, directory, places)
        record = cpu_of_records(Path(directory) / "journal")
        row = asyncio.run(cpu_of_rows(Path(directory) / "calls.db"))
    print(f"a row of the store of calls costs {row / record:.1f} times a record of the journal")


COLLECTOR = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def print_telemetry(steps: int) -> None:
    listener = ("on_rollout_start", "on_wait_start", "on_wait_end", "on_rollout_end")
    spans = [(RunSpans, name) for name in (*listener, "start_stage", "end_stage", "end_step")]
    with subprocess.Popen([sys.executable, "-c", COLLECTOR], stdout=subprocess.PIPE, text=True) as collector:
        assert collector.stdout is not None
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector.stdout.readline().strip()}"
        try:
            with tempfile.TemporaryDirectory() as directory:
                print_share("telemetry", steps, directory, [*spans, (Sender, "_run")])
        finally:
            collector.terminate()


def main(words: list[str]) -> None:
    numbers = [float(word) for word in words if word[0].isdigit()]
    parts = [word for word in words if not word[0].isdigit()] or ["rows", "journal", "telemetry"]
    if "rows" in parts:
        print_rows(numbers[0] if numbers and len(parts) == 1 else 5.0)
    if "journal" in parts:
        print_journal(int(numbers[0]) if numbers and "rows" not in parts else 20)
    if "telemetry" in parts:
        print_telemetry(int(numbers[0]) if numbers and "rows" not in parts else 20)


if __name__ == "__main__":
    main(sys.argv[1:])
