"""Steps of two processes that run alternately, with the CPU time and the memory of each step.

The process that compares starts a `Child` for each side, and calls their `step` alternately. In the process of a side,
a `Steps` waits for these calls. This file needs only Python's own modules, so that any environment can import it.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Steps:
    """Measurements of a process's steps, for the process that started it. That process decides when a step begins."""

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits
        self._parts: dict[str, float] = defaultdict(float)

    def begin(self) -> None:
        """Wait for the first step."""
        self._at_start = peak_gigabytes()
        self._wait()

    def end(self, **values: float) -> None:
        """Report a step, and wait for the next one."""
        cpu = cpu_seconds() - self._start
        parts = {name: value for name, value in self._parts.items() if not name.endswith("GB")}
        rest = {"rest": cpu - sum(parts.values())} if parts else {}
        peak = peak_gigabytes()
        report = {"cpu": cpu, **self._parts, **rest, **values, "growth": peak - self._at_start, "peak": peak}
        print(f"step {json.dumps(report)}", flush=True)
        self._wait()

    def _wait(self) -> None:
        if self._waits and not sys.stdin.readline():
            os._exit(0)
        self._parts.clear()
        self._start = cpu_seconds()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure a part of a step."""
        start = cpu_seconds()
        if not self._waits:
            # This also resets the peak of the whole process.
            Path("/proc/self/clear_refs").write_text("5")
        yield
        self._parts[name] += cpu_seconds() - start
        if not self._waits:
            self._parts[f"{name} GB"] = max(self._parts[f"{name} GB"], peak_gigabytes())


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


class Child:
    """A process that makes a step when it is told to."""

    def __init__(self, name: str, command: Sequence[str | Path]) -> None:
        """Start the process. `name` is for the output."""
        self.reports: list[dict[str, float]] = []
        self._name = name
        self._process = subprocess.Popen(
            command, env=os.environ | ONE_THREAD, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def step(self) -> None:
        """Make a step, and read its report."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("next\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("step "):
                self.reports.append(json.loads(line.removeprefix("step ")))
                print(f"  {self._name}: {describe(self.reports[-1:])}", flush=True)
                return
        raise SystemExit(f"The process of {self._name} ended with {self._process.wait()}.")

    def close(self) -> None:
        """End the process, which waits for a step."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def describe(reports: Sequence[dict[str, float]]) -> str:
    """Return the medians of all values, and the last peak."""
    medians = {name: statistics.median(each.get(name, 0.0) for each in reports) for name in reports[-1]}
    return ", ".join(f"{name} {value:.4g}" for name, value in (medians | {"peak": reports[-1]["peak"]}).items())


def compare_reports(ours: Sequence[dict[str, float]], theirs: Sequence[dict[str, float]], *, same_losses: bool) -> str:
    """Return the ratios of CPU time, without the first step, and of memory, and the largest difference of losses."""
    ratios = sorted(us["cpu"] / them["cpu"] for us, them in zip(ours[1:], theirs[1:], strict=True))
    memory = {name: f"{ours[-1][name] / theirs[-1][name]:.2f}" for name in ("growth", "peak")}
    text = (
        f"ratio of CPU {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}), "
        f"of the growth {memory['growth']}, of the peak {memory['peak']}"
    )
    if same_losses:
        gap = max(abs(us["loss"] - them["loss"]) for us, them in zip(ours, theirs, strict=True))
        text += f", largest difference of losses {gap:.1e}"
    return text
