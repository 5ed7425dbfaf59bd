"""Cost of starting agents and sandboxes: ``python benchmarks/agent_starts.py [agents [COUNT]] [bwrap|local [COUNT]]``.

- agents: milliseconds of CPU per rollout, without its model calls, summed over all processes, for agents that make
  their client and return. `fork` is the way of a training run. `fresh` starts a Python for each rollout. `shared` runs
  all rollouts as coroutines of one process. It isolates nothing and shows the lower bound.
- bwrap, local: the same to start a sandbox, to run ``true`` in it, and to stop it, as a median. The start contains the
  holder's CPU time, which the kernel reports when the holder ends.
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from rllm_core.contracts.sandbox import SandboxSetup
from rllm_core.plugins.registry import Registry
from rllm_gateway.running.runners import CommandRunner, FunctionRunner
from rllm_gateway.running.target import Target

PARTS = ("start and stop", "one command")


async def measure_sandboxes(name: str, sandboxes: int) -> Sequence[tuple[float, ...]]:
    """Return a row for each sandbox, with a number for each of `PARTS`. The first sandbox is not counted."""
    plugin = Registry.load().get("sandbox", name).plugin
    start, params, rows = plugin.load(), plugin.params(), []
    for _ in range(sandboxes + 1):
        times = [1000 * cpu_seconds([])]
        sandbox = await start(params, SandboxSetup())
        times.append(1000 * cpu_seconds([]))
        await sandbox.run(["true"], seconds=60)
        times.append(1000 * cpu_seconds([]))
        await sandbox.stop()
        times.append(1000 * cpu_seconds([]))
        rows.append((times[1] - times[0] + times[3] - times[2], times[2] - times[1]))
    return rows[1:]


def print_sandboxes(name: str, count: int) -> None:
    rows = asyncio.run(measure_sandboxes(name, count))
    for part, values in zip(PARTS, zip(*rows, strict=True), strict=True):
        print(f"{name}: {part} {statistics.median(values):.1f} ms of CPU, at most {max(values):.1f}")


ROLLOUTS, AT_A_TIME = 100, 8
SANDBOXES = 50
ENVIRONMENT = {
    "OPENAI_API_KEY": "k",
    "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
    "ANTHROPIC_API_KEY": "k",
    "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
}
AGENTS = {
    "no client": "def solve(task):\n    return 1.0\n",
    "openai, client of the file": (
        "from openai import OpenAI\nclient = OpenAI()\ndef solve(task):\n    client.chat.completions\n    return 1.0\n"
    ),
    "openai, async client of the rollout": (
        "from openai import AsyncOpenAI\nasync def solve(task):\n    AsyncOpenAI().chat.completions\n    return 1.0\n"
    ),
    "anthropic, client of the file": (
        "from anthropic import Anthropic\nclient = Anthropic()\ndef solve(task):\n    client.messages\n    return 1.0\n"
    ),
}
AS_PROGRAM = (
    "import asyncio, inspect, json\nsaid = solve({})\nif inspect.isawaitable(said):\n    said = asyncio.run(said)\n"
)
AS_PROGRAM += "print(json.dumps({'reward': said}))\n"
RunAll = Callable[[], Awaitable[Any]]


def cpu_seconds(children: list[int]) -> float:
    """Return the CPU seconds of this process, of `children`, and of the processes that these have waited for."""
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(each.ru_utime + each.ru_stime for each in own)
    for pid in children:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds


async def milliseconds(run_all: RunAll, rollouts: int, children: Callable[[], list[int]]) -> tuple[float, float]:
    """Return the median CPU time and the median duration of a rollout. The first one is not counted."""
    await run_all()
    before, waited = cpu_seconds(children()), list[float]()
    slots = asyncio.Semaphore(AT_A_TIME)

    async def one() -> None:
        async with slots:
            began = time.perf_counter()
            await run_all()
            waited.append(time.perf_counter() - began)

    await asyncio.gather(*(one() for _ in range(rollouts)))
    used = cpu_seconds(children()) - before
    return used / rollouts * 1e3, sorted(waited)[rollouts // 2] * 1e3


async def forked(agent: Path, directory: Path, rollouts: int) -> tuple[float, float]:
    runner = FunctionRunner(Target(str(agent), "solve"), directory)
    try:
        return await milliseconds(
            lambda: _succeeded(runner.run({}, ENVIRONMENT)),
            rollouts,
            lambda: [runner._process.pid] if runner._process else [],
        )
    finally:
        await runner.close()


async def fresh(agent: Path, directory: Path, rollouts: int) -> tuple[float, float]:
    program = directory / "program.py"
    program.write_text(agent.read_text() + AS_PROGRAM)
    runner = CommandRunner([sys.executable, str(program)], directory)
    return await milliseconds(lambda: _succeeded(runner.run({}, ENVIRONMENT)), rollouts, list)


async def shared(agent: Path, directory: Path, rollouts: int) -> tuple[float, float]:
    os.environ.update(ENVIRONMENT)
    names: dict[str, Any] = {}
    exec(agent.read_text(), names)

    async def run_all() -> None:
        said = names["solve"]({})
        if asyncio.iscoroutine(said):
            await said

    return await milliseconds(run_all, rollouts, list)


async def _succeeded(running: Awaitable[Any]) -> None:
    outcome = await running
    assert outcome.code == 0, outcome.failure


async def print_agents(rollouts: int) -> None:
    for name, source in AGENTS.items():
        with tempfile.TemporaryDirectory() as place:
            agent = Path(place) / "agent.py"
            agent.write_text(source)
            metrics = []
            for way, few in ((forked, 1), (fresh, 10), (shared, 1)):
                cpu, waited = await way(agent, Path(place), rollouts // few)
                metrics.append(f"{way.__name__} {cpu:.1f} ms (waits {waited:.0f})")
        print(f"{name}: {', '.join(metrics)}", flush=True)


def main(words: Sequence[str]) -> None:
    (count,) = [int(word) for word in words if word.isdigit()] or [None]
    if not words or "agents" in words:
        asyncio.run(print_agents(count or ROLLOUTS))
    for name in ("bwrap", "local"):
        if not words or name in words:
            print_sandboxes(name, count or SANDBOXES)


if __name__ == "__main__":
    main(sys.argv[1:])
