"""A run's processes with their names for errors, and the last lines of their logs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

TAIL_LINES = 30
"""Total number of log lines in an error. Each log gets at least `FEWEST_LINES`."""
FEWEST_LINES = 5
MAX_LOGS = 4
_TAIL_BYTES = 1 << 16
_DAEMONS = ("raylet", "gcs_server")
"""Ray's own processes, without which a cluster cannot work."""


@dataclass(frozen=True)
class Process:
    """A process of the run, with its name for errors."""

    name: str
    """The process name, such as ``worker 0`` or ``rollout server 1``."""
    pid: int
    node: str
    """Address of the process's machine."""
    actor_id: str


def process_of(name: str, handle: Any) -> Process:
    """Return the process of a Ray actor."""
    pid, node = ray.get(handle.__ray_call__.remote(lambda actor: (os.getpid(), ray.util.get_node_ip_address())))
    return Process(name, pid, node, handle._actor_id.hex())


def unnamed_processes(known: Collection[int]) -> list[Process]:
    """Return processes of this machine whose pids are not in `known`, ordered by their last log entry, newest first.

    They include processes that are still starting. Their names are available only after their first answer.
    """
    files = sorted(_all_logs(), key=lambda file: file.stat().st_mtime, reverse=True)
    names = [file.name for file in files if file.stat().st_size]
    pids = [int(match[1]) for name in names if (match := re.search(r"-(\d+)\.(?:out|err)$", name))]
    return [Process(f"process {pid}", pid, "this machine", "") for pid in dict.fromkeys(pids) if pid not in known]


def log_tails(processes: Sequence[Process]) -> str:
    """Return the last lines of each process's log. For a process on a different machine, return the log's location."""
    parts = []
    shown = processes[:MAX_LOGS]
    lines_each = max(FEWEST_LINES, TAIL_LINES // max(len(shown), 1))
    for process in shown:
        files = sorted(
            file for file in _all_logs() if file.name.endswith((f"-{process.pid}.out", f"-{process.pid}.err"))
        )
        lines = [line for file in files for line in _last_lines(file)]
        if lines:
            text = "\n".join(f"    {line}" for line in lines[-lines_each:])
            parts.append(f"  The end of the log of {process.name} ({files[-1]}):\n{text}")
        elif not files:
            parts.append(f"  The log of {process.name} is on {process.node}, in Ray's session directory.")
    return "\n".join(parts)


def dead_daemon() -> str | None:
    """Return a stopped Ray process of a cluster that was started here, as ``raylet (process 7)``. None if all run."""
    node = ray._private.worker._global_node
    for name, process in node.dead_processes() if node is not None else ():
        if name in _DAEMONS:
            return f"{name} (process {process.pid}; its log: {node.get_logs_dir_path()}/{name}.out)"
    return None


def kill_workers() -> None:
    """Kill all processes of this run on this machine, including processes that are still starting, without a handle."""
    if not ray.is_initialized():
        return  # otherwise Ray would start a new cluster to answer the next call
    job = ray.get_runtime_context().get_job_id()
    for file in _all_logs():
        # worker-<worker id>-<job id>-<pid>.out
        match = re.search(rf"-{job}-(\d+)\.out$", file.name)
        if match is not None and _is_ray_process(int(match[1])):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(match[1]), signal.SIGKILL)


def _is_ray_process(pid: int) -> bool:
    """Return True if the process is still a Ray process. The system can reuse the pid of a process that has ended."""
    try:
        return b"ray" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return not Path("/proc").is_dir()


def _all_logs() -> list[Path]:
    node = ray._private.worker._global_node
    return [] if node is None else list(Path(node.get_logs_dir_path()).glob("worker-*"))


def _last_lines(file: Path) -> list[str]:
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - _TAIL_BYTES))
        text = opened.read().decode("utf-8", "replace")
    # Ray adds its own lines between the process's lines. They name the actor for Ray's log monitor.
    return [line for line in text.splitlines() if line.strip() and not line.startswith(":")]
