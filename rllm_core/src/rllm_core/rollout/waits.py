"""Waits of rollouts in progress: for the model, a tool, a reward, a sandbox or the environment.

A reader such as `rllm runs status` collects them with `PendingRollouts`. Without a reader they cost nothing.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from statistics import median
from typing import Literal

WaitKind = Literal["model", "tool", "reward", "sandbox", "environment", "environment server", "workflow"]
KEPT = 1_000
"""Number of finished waits of a kind whose seconds are kept."""


@dataclass(frozen=True, kw_only=True)
class PendingWait:
    """The wait of a rollout at one moment."""

    uid: str
    """Id of the rollout, ``task-3:5``. A reward that compares all rollouts of a task has ``task-3:*``."""
    turn: int
    """Number of the current turn, from 0: the number of model calls before the current one."""
    kind: WaitKind
    name: str
    """Name of the tool, the reward or the server, or an empty string."""
    since: float
    """Start of the wait, in seconds of `time.monotonic`."""


class PendingRollouts:
    """The rollouts in progress of one run. A different thread may read it."""

    def __init__(self) -> None:
        self._open: dict[int, _Rollout] = {}
        self._finished: defaultdict[WaitKind, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))

    def collect(self) -> None:
        """Collect the rollouts that start in the caller's context, and in tasks that it creates."""
        _pending.set(self)

    def read(self) -> list[PendingWait]:
        """Return the wait of each rollout in progress, the longest first."""
        waits = [rollout.current_wait() for rollout in list(self._open.values())]
        return sorted(waits, key=lambda wait: wait.since)

    def median_seconds(self, kind: WaitKind) -> float | None:
        """Return the median of the latest finished waits of a kind. None if no wait has finished."""
        finished = self._finished[kind]
        return median(list(finished)) if finished else None

    def add_seconds(self, kind: WaitKind, seconds: float) -> None:
        """Add the seconds of a finished wait."""
        self._finished[kind].append(seconds)


class _Rollout(AbstractContextManager[None]):
    """One rollout in progress. Between its waits, it waits for its workflow's own code, for example an agent."""

    __slots__ = ("_pending", "_token", "changed", "turn", "uid", "waits")

    def __init__(self, pending: PendingRollouts, uid: str) -> None:
        self._pending, self.uid = pending, uid
        self.turn = -1
        self.waits: list[Wait] = []
        self.changed = time.monotonic()

    def __enter__(self) -> None:
        self._token = _rollout.set(self)
        self._pending._open[id(self)] = self

    def __exit__(self, *_: object) -> None:
        del self._pending._open[id(self)]
        _rollout.reset(self._token)

    def add(self, wait: Wait) -> None:
        """Note the start of a wait, and the end of the workflow's own work."""
        wait.since = time.monotonic()
        if not self.waits:
            self._pending.add_seconds("workflow", wait.since - self.changed)
        self.waits.append(wait)

    def remove(self, wait: Wait) -> None:
        """End a wait. Waits of a rollout may end in any order."""
        self.changed = time.monotonic()
        self.waits.remove(wait)
        self._pending.add_seconds(wait.kind, self.changed - wait.since)

    def current_wait(self) -> PendingWait:
        """Return the wait that started last."""
        turn = max(0, self.turn)
        for wait in self.waits[-1:]:
            return PendingWait(uid=self.uid, turn=turn, kind=wait.kind, name=wait.name, since=wait.since)
        return PendingWait(uid=self.uid, turn=turn, kind="workflow", name="", since=self.changed)


_pending: ContextVar[PendingRollouts | None] = ContextVar("pending", default=None)
_rollout: ContextVar[_Rollout | None] = ContextVar("rollout", default=None)


def open_rollout(uid: str) -> AbstractContextManager[None]:
    """Return a context manager for one rollout, or for the rewards of a group."""
    pending = _pending.get()
    return nullcontext() if pending is None else _Rollout(pending, uid)


class Wait:
    """A context manager for code that waits, for example ``with Wait("tool", "search"):``.

    It belongs to the rollout in whose task or thread it is made. Outside a rollout it has no effect.
    """

    __slots__ = ("_rollout", "kind", "name", "since")

    def __init__(self, kind: WaitKind, name: str = "") -> None:
        self.kind, self.name = kind, name
        self.since = 0.0
        self._rollout = _rollout.get()

    def __enter__(self) -> None:
        if self._rollout is not None:
            self._rollout.add(self)

    def __exit__(self, *_: object) -> None:
        if self._rollout is not None:
            self._rollout.remove(self)


class ModelWaits:
    """The waits for the model of one rollout. Its calls may come from tasks outside the rollout, as in a gateway."""

    __slots__ = ("_rollout",)

    def __init__(self) -> None:
        self._rollout = _rollout.get()

    def start(self) -> Wait:
        """Return the wait of a new turn."""
        wait = Wait("model")
        wait._rollout = self._rollout
        if self._rollout is not None:
            self._rollout.turn += 1
        return wait
