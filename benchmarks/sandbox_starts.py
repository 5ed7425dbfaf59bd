"""Cost of a sandbox: ``python benchmarks/sandbox_starts.py [SANDBOXES] [--sandbox bwrap]``.

Milliseconds of CPU of this process and of all its child processes, median: to start a sandbox, to run ``true`` in it,
and to stop it. The start contains the holder's CPU time, which the kernel reports when the holder ends.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
from collections.abc import Sequence

from rllm_core.contracts.sandbox import SandboxSetup
from rllm_core.plugins.registry import Registry

PARTS = ("start and stop", "one command")


def cpu_milliseconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return 1000 * sum(each.ru_utime + each.ru_stime for each in used)


async def measure(name: str, sandboxes: int) -> Sequence[tuple[float, ...]]:
    """Return a row for each sandbox, with a number for each of `PARTS`. The first sandbox is not counted."""
    plugin = Registry.load().get("sandbox", name).plugin
    start, params, rows = plugin.load(), plugin.params(), []
    for _ in range(sandboxes + 1):
        times = [cpu_milliseconds()]
        sandbox = await start(params, SandboxSetup())
        times.append(cpu_milliseconds())
        await sandbox.run(["true"], seconds=60)
        times.append(cpu_milliseconds())
        await sandbox.stop()
        times.append(cpu_milliseconds())
        rows.append((times[1] - times[0] + times[3] - times[2], times[2] - times[1]))
    return rows[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sandboxes", type=int, nargs="?", default=50)
    parser.add_argument("--sandbox", default="bwrap")
    arguments = parser.parse_args()
    rows = asyncio.run(measure(arguments.sandbox, arguments.sandboxes))
    for part, values in zip(PARTS, zip(*rows, strict=True), strict=True):
        print(f"{arguments.sandbox}: {part} {statistics.median(values):.1f} ms of CPU, at most {max(values):.1f}")


if __name__ == "__main__":
    main()
