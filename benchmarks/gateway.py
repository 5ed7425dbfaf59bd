"""Costs of a gateway call: ``gateway.py [cost] [latency] [memory [DIRECTORY]] [kills [COUNT]]``.

- cost: CPU time of the gateway's process per call (8 kB in, 200 tokens out, 32 clients, a policy that answers at once
  over the link). Next to it is a server that only reads, samples and answers.
- latency: time that one idle client waits for the gateway, for that server, and for that server with a commit to the
  same store. The client calls them alternately.
- memory: 200 sessions of 50 turns of 600 tokens. A run's gateway before its first session, with the real renderers of
  the model `tiny` or of the tokenizer in DIRECTORY.
- kills: acknowledged calls that are not in the store after SIGKILL.

Conversations have four turns and grow, as those of agents do. The renderer costs next to nothing.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import numpy as np
import orjson

from rllm_backend_kit.renderers import make_renderer
from rllm_core.contracts.backend import RunContext
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.engine import Completion
from rllm_core.contracts.renderer import RendererSetup
from rllm_core.plugins import resolve
from rllm_core.rollout.options import TemplateParams
from rllm_core.schema.run_config import RunConfig
from rllm_gateway.calls import CallReader
from rllm_gateway.sampling.link_trainer import TrainerLink
from rllm_gateway.serving.opening import gateway_process
from rllm_gateway.sessions.link import OpenedSession, SessionSpec

CLIENTS, SECONDS, IDLE_CALLS = 32, 15.0, 1000
PAGE = 4096
TURNS, OPENING, TURN = 4, 5_200, 800
"""Turns of a conversation, characters of its first message, and characters after each response of 800.

A request has 8 kB on average."""
RESPONSE_TOKENS = 200
SESSIONS, LONG_TURNS, NEW_TOKENS = 200, 50, 400
TICKS = os.sysconf("SC_CLK_TCK")


class Dummy:
    """A sampler that answers at once."""

    def __init__(self) -> None:
        self._calls = 0

    async def sample(self, prompt_ids: Any, sampling: Any, *, call: str, branch: str) -> Completion:
        self._calls += 1
        text = f"{self._calls:08d}".encode() + b"the number is lower " * 40
        ids = np.frombuffer(text[: 4 * RESPONSE_TOKENS], np.int32)
        return Completion(
            token_ids=ids,
            logprobs=np.full(len(ids), -0.7, np.float32),
            finish_reason="stop",
            weight_version=0,
        )


@dataclass(frozen=True)
class Child:
    """The measured process."""

    kind: str
    process: asyncio.subprocess.Process
    port: int
    link: TrainerLink

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def megabytes(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@asynccontextmanager
async def child(kind: str, store: Path) -> AsyncIterator[Child]:
    """Start a process of one kind, as listed in `gateway_server.py`."""
    ours, theirs = socket.socketpair()
    with theirs:
        program = str(Path(__file__).with_name("gateway_server.py"))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, program, kind, str(theirs.fileno()), str(store)),
            stdout=asyncio.subprocess.PIPE,
            pass_fds=[theirs.fileno()],
        )
    assert process.stdout is not None
    link = TrainerLink(*await asyncio.open_connection(sock=ours))
    if kind != "gateway":
        link._samplers["s"] = Dummy()  # type: ignore[assignment]
    try:
        yield Child(kind, process, int(await process.stdout.readline()), link)
    finally:
        await link.close()
        if process.returncode is None:
            await process.wait()


class Client:
    """A connection without the cost of a real client. It reconnects if the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @classmethod
    @asynccontextmanager
    async def connected(cls, port: int) -> AsyncIterator[Client]:
        client = cls(port)
        await client.connect()
        try:
            yield client
        finally:
            client.close()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._ends is None or self._ends[0].at_eof():
            self.close()
            self._ends = await asyncio.open_connection("127.0.0.1", self._port)
        return self._ends

    def close(self) -> None:
        if self._ends is not None:
            self._ends[1].close()

    async def ask(self, path: str, key: str, messages: list[Any]) -> bytes:
        body = orjson.dumps({"model": "m", "messages": messages, "temperature": 1.0})
        head = (
            f"POST {path}/v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        reader, writer = await self.connect()
        writer.write(head.encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert lines.startswith(b"http/1.1 200"), lines
        size = int(lines.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return await reader.readexactly(size)


async def opened(child: Child, name: str) -> OpenedSession:
    spec = SessionSpec(id=name, run="benchmark", rollout=name, max_tokens=400)
    return await child.link.open_session(spec, Dummy())  # type: ignore[arg-type]


async def conversation(
    child: Child, client: Client, name: str, turns: int, new: int, first: int
) -> AsyncIterator[tuple[float, bytes]]:
    """Yield the seconds and body of each answer, and close the session after the last one."""
    keeps_sessions = child.kind == "gateway"
    path, key = "", "k"
    if keeps_sessions:
        session = await opened(child, name)
        path, key = f"{urlsplit(session.url).path}/agent", session.key
    messages: list[Any] = [{"role": "user", "content": f"{name} " + "x" * first}]
    for _ in range(turns):
        began = time.perf_counter()
        said = await client.ask(path, key, messages)
        yield time.perf_counter() - began, said
        words = orjson.loads(said)["choices"][0]["message"]["content"] if keeps_sessions else "y" * 800
        messages += [{"role": "assistant", "content": words}, {"role": "user", "content": "z" * new}]
    if keeps_sessions:
        await child.link.close_session(name)


async def cost(kind: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with child(kind, Path(directory) / "calls.db") as served:
            cpu, calls = await _loaded(served)
    micro = cpu / calls * 1e6
    print(f"{kind}: {micro:.0f} µs CPU per call, {1e6 / micro:,.0f} calls/s per core")


async def latency(kinds: tuple[str, ...]) -> None:
    """Print the latencies. The servers are called alternately, so other work on the machine disturbs them alike."""
    waited: dict[str, list[float]] = {kind: [] for kind in (*kinds, "fsync of a page")}
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        servers = [await stack.enter_async_context(child(kind, Path(directory) / f"{kind}.db")) for kind in kinds]
        clients = [await stack.enter_async_context(Client.connected(served.port)) for served in servers]
        page = stack.enter_context((Path(directory) / "page").open("wb", buffering=0))
        for number in range(IDLE_CALLS // TURNS):
            conversations = [
                conversation(served, client, f"idle-{number}", TURNS, TURN, OPENING)
                for served, client in zip(servers, clients, strict=True)
            ]
            for _ in range(TURNS):
                for kind, conversed in zip(kinds, conversations, strict=True):
                    waited[kind].append((await anext(conversed))[0])
                waited["fsync of a page"].append(_synced(page))
            for conversed in conversations:
                await anext(conversed, None)  # The end of the conversation closes the session.
    for kind, each in waited.items():
        quantiles = statistics.quantiles(each[20:], n=100)
        print(f"{kind}: one idle client waits p50 {quantiles[49] * 1e3:.2f} ms, p99 {quantiles[98] * 1e3:.2f} ms")


def _synced(page: BinaryIO) -> float:
    """Return the seconds of one fsync of a page, the lower bound of a durable call."""
    page.write(b"x" * PAGE)
    began = time.perf_counter()
    os.fsync(page.fileno())
    return time.perf_counter() - began


async def _loaded(served: Child) -> tuple[float, int]:
    """Return the CPU seconds of the process, and the number of calls."""
    calls, until = 0, time.monotonic() + SECONDS

    async def work(number: int) -> None:
        nonlocal calls
        rollout = 0
        async with Client.connected(served.port) as client:
            while time.monotonic() < until:
                rollout += 1
                conversed = conversation(served, client, f"{number}-{rollout}", TURNS, TURN, OPENING)
                async for _ in conversed:
                    calls += 1

    before = served.cpu_seconds()
    await asyncio.gather(*(work(number) for number in range(CLIENTS)))
    return served.cpu_seconds() - before, calls


async def memory() -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory) / "calls.db"
        async with child("gateway", store) as served:
            before = served.megabytes()
            ends, all_asked = asyncio.Event(), asyncio.Semaphore(0)

            async def converse(number: int, pass_: int) -> None:
                name, turn = f"{pass_}-{number}", 0
                async with Client.connected(served.port) as client:
                    async for _ in conversation(served, client, name, LONG_TURNS, 4 * NEW_TOKENS, 4 * NEW_TOKENS):
                        turn += 1
                        if turn == LONG_TURNS:
                            all_asked.release()
                            await ends.wait()

            for pass_ in range(2):
                ends.clear()
                running = [asyncio.create_task(converse(number, pass_)) for number in range(SESSIONS)]
                for _ in running:
                    await all_asked.acquire()
                most = served.megabytes()
                ends.set()
                await asyncio.gather(*running)
                after = served.megabytes()
                print(f"{SESSIONS} sessions of {LONG_TURNS} turns: {before:.0f} MB before, ", end="")
                print(f"{most:.0f} MB with all open, {after:.0f} MB after their close")
        stored = sum(each.stat().st_size for each in Path(directory).iterdir())
        print(f"store: {stored / 2 / SESSIONS / 1e3:.0f} kB per session")


async def start(directory: Path | None) -> None:
    """Print the memory and CPU time of a run's gateway before its first session."""
    from transformers import AutoTokenizer

    from rllm_local.tiny import build_tokenizer

    tokenizer = build_tokenizer() if directory is None else AutoTokenizer.from_pretrained(directory)
    setup = RendererSetup(name="./measured", tokenizer=tokenizer, stop_ids=frozenset({tokenizer.eos_token_id}))
    for name in ("rllm-core/template", "rllm-renderers/auto"):
        chosen = PluginChoice(registered=resolve("renderer", name), params=TemplateParams())
        run = RunContext(config=RunConfig(), backend_config=None, seed=0, total_steps=1, renderer=chosen)
        with tempfile.TemporaryDirectory() as place:
            renderer = make_renderer(run, setup)
            async with gateway_process(renderer, Path(place, "calls.db"), "127.0.0.1", 0, Path(place)):
                print(f"{name} with {len(tokenizer):,} tokens: {_before_sessions()}")


def _before_sessions() -> str:
    """Return the memory and CPU time of the child process that is a gateway."""
    children = [pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()]
    (pid,) = (pid for pid in children if "rllm_gateway.serving.child" in Path(f"/proc/{pid}/cmdline").read_text())
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    kilobytes = {words[0].rstrip(":"): int(words[1]) for words in lines}
    private = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    seconds = (int(fields[11]) + int(fields[12])) / TICKS
    sizes = {"resident": kilobytes["Rss"], "proportional": kilobytes["Pss"], "private": private}
    shown = ", ".join(f"{size * 1024 / 1e6:.0f} MB {kind}" for kind, size in sizes.items())
    return f"{shown}, {seconds:.1f} s of CPU"


async def kills(count: int) -> tuple[int, int]:
    """Return the number of acknowledged calls, and how many of them are not in the store."""
    acknowledged = lost = 0
    for _ in range(count):
        with tempfile.TemporaryDirectory() as directory:
            store = Path(directory) / "calls.db"
            said = await _killed(store, random.uniform(0.2, 1.0))
            with CallReader.open(store) as reader:
                stored = {
                    f"{row.prompt_digest}{int(row.id.rpartition('-')[2]):x}"
                    for s in reader.sessions()
                    for row in reader.calls(s.session.id)
                }
            acknowledged += len(said)
            lost += len(said - stored)
    return acknowledged, lost


async def _killed(store: Path, within: float) -> set[str]:
    """Return the ids of the calls that were acknowledged before the kill."""
    said = set[str]()
    async with child("gateway", store) as served:

        async def work(number: int) -> None:
            rollout = 0
            async with Client.connected(served.port) as client:
                while True:
                    rollout += 1
                    async for _, body in conversation(served, client, f"{number}-{rollout}", TURNS, TURN, OPENING):
                        said.add(orjson.loads(body)["id"].removeprefix("chatcmpl-"))

        working = [asyncio.create_task(work(number)) for number in range(8)]
        await asyncio.sleep(within)
        served.process.send_signal(signal.SIGKILL)
        await served.process.wait()
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
    return said


async def main(words: list[str]) -> None:
    if not words or "cost" in words:
        for kind in ("pass_through", "gateway"):
            await cost(kind)
    if not words or "latency" in words:
        await latency(("pass_through", "stored_pass_through", "gateway"))
    if not words or "memory" in words:
        await memory()
        await start(next((Path(word) for word in words if Path(word).is_dir()), None))
    if not words or "kills" in words:
        count = next((int(word) for word in words if word.isdigit()), 20)
        acknowledged, lost = await kills(count)
        print(f"{count} SIGKILLs: {acknowledged} acknowledged calls, {lost} lost")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
