"""Steps of our trainer and of verl's own on the same work, alternately: their cost without the computation.

Each side is a process with its own Ray and workers (see verl_sides/). Both exist all the time. One of them makes a step
while the other waits, so other work on the machine disturbs both alike.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self, TextIO

SIDES = ("theirs", "ours")
"""Sides in the order of their start. The first one reports when its Ray runs, so two Rays never start at once."""
DIRECTORY = Path(__file__).parent / "verl_sides"
WARM_UP = 2
"""First steps that are not counted. Both sides make the first one at the same time."""
START_SECONDS, STEP_SECONDS, END_SECONDS = 300.0, 120.0, 60.0
TAIL = 3000
"""Characters of a failed side's output that are shown."""


@dataclass(frozen=True)
class StepCost:
    """Seconds of one step, measured alike on both sides."""

    driver: float
    """Seconds from the responses to the gradient step: grouping, advantages, batches, conversion, transport.
    Without the training engine's computation and without moving weights."""
    around: float
    """As `driver`, with metrics, logging and the next prompts."""
    without_generation: float
    """The whole step without `generation`."""
    whole: float
    tokens: float

    @classmethod
    def from_lines(cls, said: Mapping[str, float], spans: Sequence[tuple[float, float]]) -> Self:
        """Return the costs from a side's report of a step (``verl_sides/turns.py``) and its training engine's spans."""
        began, ended = said["began"], said["ended"]
        compute = sum(end - start for start, end in spans if began <= start < ended)
        elsewhere = said["generation"] + said["transfer"] + compute
        return cls(
            driver=said["step"] - elsewhere,
            around=ended - began - elsewhere,
            without_generation=ended - began - said["generation"],
            whole=ended - began,
            tokens=said["tokens"],
        )


class Side:
    """One of the two processes."""

    def __init__(self, name: str, workload: str, directory: Path, port: int) -> None:
        self.name = name
        self._spans = directory / f"{name}.spans"
        self._output = directory / f"{name}.txt"
        environment = {
            "VERL_PLATFORM": "cpu",
            "OMP_NUM_THREADS": "1",
            "RLLM_VERL_LINE": str(port),
            "RLLM_VERL_SPANS": str(self._spans),
        }
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                # Ray's workers import from the current directory, and benchmarks/ has a verl.py.
                [sys.executable, str(DIRECTORY / f"{name}.py"), workload],
                cwd=directory,
                env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.line: TextIO | None = None

    def require_running(self) -> None:
        if self._process.poll() is not None:
            self._fail(f"ended with status {self._process.returncode}")

    def read_line(self) -> dict[str, Any]:
        """Return its report of the finished step."""
        assert self.line is not None
        try:
            line = self.line.readline()
        except TimeoutError:
            self._fail("did not end a step in time")
        if not line:
            self._fail("ended early")
        said: dict[str, Any] = json.loads(line)
        return said

    def go_on(self) -> None:
        assert self.line is not None
        self.line.write("go\n")
        self.line.flush()

    def spans(self) -> list[tuple[float, float]]:
        return [(start, end) for start, end in map(json.loads, self._spans.read_text().splitlines())]

    def end(self) -> None:
        """Wait until its Ray and its process have ended."""
        try:
            status = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._fail(f"did not end within {END_SECONDS:.0f} s")
        if status:
            self._fail(f"ended with status {status}")

    def stop(self) -> None:
        """Stop it if it still runs. Its Ray stops too."""
        if self.line is not None:
            self.line.close()
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _fail(self, what: str) -> NoReturn:
        text = self._output.read_text(errors="replace")[-TAIL:]
        raise SystemExit(f"The side {self.name!r} {what}. It wrote:\n{text}")


def step_costs(workload: str, steps: int, directory: Path) -> dict[str, list[StepCost]]:
    """Return the costs of steps, by side.

    Args:
        workload: see ``verl_sides/workload.py``, as JSON.
        steps: number of steps of each side, including the warm-up.
        directory: an empty directory.
    """
    with _sides(workload, directory) as sides:
        said: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
        for _ in range(steps - 1):
            for name, side in sides.items():
                side.go_on()
                said[name].append(side.read_line())
        for side in sides.values():
            side.go_on()
        for side in sides.values():
            side.end()
        return {
            name: [StepCost.from_lines(step, side.spans()) for step in said[name][WARM_UP - 1 :]]
            for name, side in sides.items()
        }


def median(costs: Sequence[StepCost], what: str) -> float:
    return statistics.median(getattr(cost, what) for cost in costs)


@contextmanager
def _sides(workload: str, directory: Path) -> Iterator[dict[str, Side]]:
    """Yield both sides, each after its first step."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        sides, connections = {}, []
        for name in SIDES:
            side = sides[name] = Side(name, workload, directory, server.getsockname()[1])
            stack.callback(side.stop)
            connection = stack.enter_context(_accepted(server, side))
            connection.settimeout(START_SECONDS)
            connections.append(connection)
            side.line = connection.makefile("rw")
        for side in sides.values():
            side.read_line()
        for connection in connections:
            connection.settimeout(STEP_SECONDS)
        yield sides


def _accepted(server: socket.socket, side: Side) -> socket.socket:
    server.settimeout(1.0)
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        try:
            return server.accept()[0]
        except TimeoutError:
            side.require_running()
    raise SystemExit(f"The side {side.name!r} did not start within {START_SECONDS:.0f} s.")
