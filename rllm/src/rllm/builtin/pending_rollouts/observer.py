"""The observer `pending_rollouts`: it writes `pending.json`, and warns about rollouts that wait too long.

It has its own thread, because an environment may block the event loop.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import Field

from rllm_core.contracts.backend import Backend, BackendWrapper
from rllm_core.contracts.engine import RolloutEngine
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.params import Params
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.notices import harmless, one_line, say
from rllm_core.rollout.waits import PendingRollouts, PendingWait, WaitKind
from rllm_record.pending import PENDING, PendingFile, PendingRow, write_pending
from rllm_record.run_files import short_path


class PendingRolloutsParams(Params):
    """Options of the observer `pending_rollouts`."""

    slow_after: float = Field(8.0, gt=0)
    """Minimum number of seconds until a wait is slow. A slow wait is also longer than ten times the median of finished
    waits for the same part."""


PAUSE = 1.0
"""Seconds between two looks at the pending rollouts."""
TIMES_MEDIAN = 10.0
WITHOUT_MEDIAN = 7.5
"""Factor of `slow_after` until the first wait of a kind is slow. A first model call may compile or load for a while."""
BETWEEN_WARNINGS = 7.5
"""Factor of `slow_after` between two warnings about the same kind of wait."""
ROWS = 200
"""Maximum number of rollouts in the file."""


class PendingRolloutsObserver(Observer):
    """Shows a run's pending rollouts while it continues."""

    def __init__(self, params: PendingRolloutsParams) -> None:
        self._rollouts = PendingRollouts()
        self._slow = SlowWaits(self._rollouts, params.slow_after)
        self._pause = min(PAUSE, params.slow_after / 4)
        self._directory = Path()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def wrap_backend(self, backend: Backend, run: TrackedRun) -> Backend:
        return _EndingBackend(backend, self)

    def wrap_engine(self, engine: RolloutEngine, run: TrackedRun) -> RolloutEngine:
        self._directory = run.directory
        self._rollouts.listen()
        return engine

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        self._thread = threading.Thread(target=self._watch, name="rllm-pending-rollouts", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread, and remove the file."""
        self._rollouts.ignore()
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            with contextlib.suppress(OSError):
                (self._directory / PENDING).unlink(missing_ok=True)

    def _watch(self) -> None:
        has_rows = False
        while not self._ended.wait(self._pause):
            waits, now = self._rollouts.read(), time.monotonic()
            for line in self._slow.warnings(waits, now, self._directory):
                say(f"warning: {line}")
            if waits or has_rows:
                # A full disk stops the run elsewhere, with an error.
                with contextlib.suppress(OSError):
                    write_pending(self._directory, self._content(waits, now))
            has_rows = bool(waits)

    def _content(self, waits: Sequence[PendingWait], now: float) -> PendingFile:
        epoch = time.time() - now
        rows = [
            PendingRow(
                rollout=wait.uid,
                turn=wait.turn,
                waits_for=wait.kind,
                name=wait.name,
                since=round(epoch + wait.since, 3),
                is_slow=self._slow.is_slow(wait, now),
            )
            for wait in waits[:ROWS]
        ]
        return PendingFile(total=len(waits), rows=rows)


class SlowWaits:
    """Waits that are longer than ten times the median of finished waits for the same kind of part."""

    def __init__(self, rollouts: PendingRollouts, minimum: float) -> None:
        self._rollouts, self._minimum = rollouts, minimum
        self._reported: set[PendingWait] = set()
        self._next: dict[WaitKind, float] = {}
        """Earliest time of the next warning about a kind."""

    def limit(self, kind: WaitKind) -> float:
        """Return the seconds after which a wait is slow."""
        usual = self._rollouts.median_seconds(kind)
        return WITHOUT_MEDIAN * self._minimum if usual is None else max(self._minimum, TIMES_MEDIAN * usual)

    def is_slow(self, wait: PendingWait, now: float) -> bool:
        """Return True if a wait is slow."""
        return now - wait.since >= self.limit(wait.kind)

    def warnings(self, waits: Sequence[PendingWait], now: float, directory: Path) -> Iterable[str]:
        """Yield a line for each kind with new slow waits. Each wait is reported once."""
        self._reported.intersection_update(waits)
        found: defaultdict[WaitKind, list[PendingWait]] = defaultdict(list)
        for wait in waits:
            if now - wait.since < self._minimum:
                break  # the longest wait is first
            if wait not in self._reported and self.is_slow(wait, now):
                found[wait.kind].append(wait)
        for kind, slow in found.items():
            if now < self._next.get(kind, now):
                continue
            self._next[kind] = now + BETWEEN_WARNINGS * self._minimum
            self._reported.update(slow)
            yield describe_slow(slow, now, directory)


def describe_slow(slow: Sequence[PendingWait], now: float, directory: Path) -> str:
    """Return the warning about slow waits of one kind, the longest first."""
    first, others = slow[0], len(slow) - 1
    part = f"{first.kind} {harmless(one_line(first.name, 80))}".rstrip()
    also = f" (and {others} other rollout{'s' * (others != 1)})" if others else ""
    path = shlex.quote(str(short_path(directory.absolute())))
    return (
        f"rollout {harmless(first.uid)!r}, turn {first.turn}, has waited {now - first.since:.0f} s for the "
        f"{part}{also}, to list all: rllm runs status {path}"
    )


class _EndingBackend(BackendWrapper):
    """A backend that ends the observer with the run, also after an error."""

    def __init__(self, backend: Backend, observer: PendingRolloutsObserver) -> None:
        super().__init__(backend)
        self._observer = observer

    async def close(self) -> None:
        """End the observer, and close the backend."""
        self._observer.end()
        await super().close()
