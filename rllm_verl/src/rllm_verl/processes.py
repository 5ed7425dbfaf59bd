"""The processes of a run, as errors name them, and the end of what each of them wrote into its log."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

TAIL_LINES = 30
"""Of all logs of an error together; of each of many at least `FEWEST_LINES`."""
FEWEST_LINES = 5
MOST_LOGS = 4
_TAIL_BYTES = 1 << 16


@dataclass(frozen=True)
class Process:
    """A process of the run, as errors name it."""

    name: str
    """Such as ``worker 0`` or ``rollout server 1``."""
    pid: int
    node: str
    """Address of the machine it runs on."""
    actor_id: str


def process_of(name: str, handle: Any) -> Process:
    """The process of a Ray actor."""
    pid, node = ray.get(handle.__ray_call__.remote(lambda actor: (os.getpid(), ray.util.get_node_ip_address())))
    return Process(name, pid, node, handle._actor_id.hex())


def log_tails(processes: Sequence[Process]) -> str:
    """The end of each process's log, where that is on this machine, and where to look otherwise."""
    parts = []
    shown = processes[:MOST_LOGS]
    lines_each = max(FEWEST_LINES, TAIL_LINES // max(len(shown), 1))
    for process in shown:
        files = sorted(_log_files(process.pid))
        lines = [line for file in files for line in _last_lines(file)]
        if lines:
            text = "\n".join(f"    {line}" for line in lines[-lines_each:])
            parts.append(f"\n  The end of the log of {process.name} ({files[-1]}):\n{text}")
        elif not files:
            parts.append(f"\n  The log of {process.name} is on {process.node}, in Ray's session folder.")
    return "".join(parts)


def _log_files(pid: int) -> Iterator[Path]:
    """What Ray wrote down of a worker process of this machine."""
    session = getattr(getattr(ray._private.worker, "_global_node", None), "get_logs_dir_path", None)
    if session is not None:
        folder = Path(session())
        yield from folder.glob(f"worker-*-{pid}.out")
        yield from folder.glob(f"worker-*-{pid}.err")


def _last_lines(file: Path) -> list[str]:
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - _TAIL_BYTES))
        text = opened.read().decode("utf-8", "replace")
    # Ray puts lines of its own between those of the process, which name the actor to its log monitor.
    return [line for line in text.splitlines() if line.strip() and not line.startswith(":")]
