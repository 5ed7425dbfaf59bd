"""Waits of rollouts in progress: for the model, a tool, a reward, a sandbox or the environment.

A reader such as `rllm runs status` collects them with `PendingRollouts`. Others derive from `RolloutListener`. Without
a reader they cost nothing.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple, Self

WaitKind = Literal["model", "tool", "reward", "sandbox", "environment", "environment server", "workflow"]
KEPT = 1_000
"""Number of finished waits of a kind whose seconds are kept."""


class ModelCall(NamedTuple):
    """The size of a finished model call, and how it was sampled."""

    prompt_tokens: int
    response_tokens: int
    finish_reason: str
    weight_version: int
    """Number of the policy update whose weights sampled the response. If there were several versions, the oldest."""


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


class RolloutListener:
    """A listener of rollouts and their waits. Override the methods that you need.

    Each method is called in the task or thread of the rollout's code, which it must not delay. Exceptions stop the run.
    """

    def listen(self) -> None:
        """Listen to rollouts that start in the caller's context, and in tasks that it creates."""
        _listeners.set((*_listeners.get(), self))

    def ignore(self) -> None:
        """Undo `listen`, for rollouts that start later."""
        _listeners.set(tuple(listener for listener in _listeners.get() if listener is not self))

    def on_rollout_start(self, rollout: OpenRollout) -> None:
        """React to the start of a rollout, or of the rewards of a group."""

    def on_wait_start(self, rollout: OpenRollout, wait: Wait) -> None:
        """React to the start of a wait. The code that waits runs next, in the same context."""

    def on_wait_end(self, rollout: OpenRollout, wait: Wait, error: BaseException | None) -> None:
        """React to the end of a wait. `error` is the exception that ended it."""

    def on_rollout_end(self, rollout: OpenRollout, error: BaseException | None) -> None:
        """React to the end of a rollout. `error` is the exception that ended it."""


class PendingRollouts(RolloutListener):
    """The rollouts in progress of one run. A different thread may read it."""

    def __init__(self) -> None:
        self._open: dict[int, OpenRollout] = {}
        self._finished: defaultdict[WaitKind, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))

    def on_rollout_start(self, rollout: OpenRollout) -> None:
        """Add a rollout in progress."""
        self._open[id(rollout)] = rollout

    def on_wait_start(self, rollout: OpenRollout, wait: Wait) -> None:
        """Add the seconds of the workflow's own work since the previous wait."""
        if len(rollout.waits) == 1:
            self._finished["workflow"].append(wait.since - rollout.changed)

    def on_wait_end(self, rollout: OpenRollout, wait: Wait, error: BaseException | None) -> None:
        """Add the seconds of the wait."""
        self._finished[wait.kind].append(rollout.changed - wait.since)

    def on_rollout_end(self, rollout: OpenRollout, error: BaseException | None) -> None:
        """Remove a rollout that has ended."""
        del self._open[id(rollout)]

    def read(self) -> list[PendingWait]:
        """Return the wait of each rollout in progress, the longest first."""
        waits = [rollout.current_wait() for rollout in list(self._open.values())]
        return sorted(waits, key=lambda wait: wait.since)

    def median_seconds(self, kind: WaitKind) -> float | None:
        """Return the median of the latest finished waits of a kind. None if no wait has finished."""
        finished = self._finished[kind]
        return median(list(finished)) if finished else None


class OpenRollout(AbstractContextManager[None]):
    """One rollout in progress. Between its waits, it waits for its workflow's own code, for example an agent."""

    __slots__ = ("_listeners", "_token", "changed", "turn", "uid", "waits")

    def __init__(self, listeners: tuple[RolloutListener, ...], uid: str) -> None:
        self._listeners, self.uid = listeners, uid
        self.turn = -1
        """Number of the current turn, from 0. -1 before the first model call."""
        self.waits: list[Wait] = []
        self.changed = time.monotonic()
        """End of the previous wait, or start of the rollout, in seconds of `time.monotonic`."""

    def __enter__(self) -> None:
        self._token = _rollout.set(self)
        for listener in self._listeners:
            listener.on_rollout_start(self)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        _rollout.reset(self._token)
        for listener in self._listeners:
            listener.on_rollout_end(self, error)

    def add(self, wait: Wait) -> None:
        """Note the start of a wait, and the end of the workflow's own work."""
        wait.since = time.monotonic()
        self.waits.append(wait)
        for listener in self._listeners:
            listener.on_wait_start(self, wait)

    def remove(self, wait: Wait, error: BaseException | None) -> None:
        """End a wait. Waits of a rollout may end in any order."""
        self.changed = time.monotonic()
        self.waits.remove(wait)
        for listener in self._listeners:
            listener.on_wait_end(self, wait, error)

    def current_wait(self) -> PendingWait:
        """Return the wait that started last."""
        turn = max(0, self.turn)
        for wait in self.waits[-1:]:
            return PendingWait(uid=self.uid, turn=turn, kind=wait.kind, name=wait.name, since=wait.since)
        return PendingWait(uid=self.uid, turn=turn, kind="workflow", name="", since=self.changed)


_listeners: ContextVar[tuple[RolloutListener, ...]] = ContextVar("listeners", default=())
_rollout: ContextVar[OpenRollout | None] = ContextVar("rollout", default=None)


def open_rollout(uid: str) -> AbstractContextManager[None]:
    """Return a context manager for one rollout, or for the rewards of a group."""
    listeners = _listeners.get()
    return OpenRollout(listeners, uid) if listeners else nullcontext()


class Wait:
    """A context manager for code that waits, for example ``with Wait("tool", "search"):``.

    It belongs to the rollout in whose task or thread it is made. Outside a rollout it has no effect.
    """

    __slots__ = ("_rollout", "call", "kind", "name", "since")

    def __init__(self, kind: WaitKind, name: str = "") -> None:
        self.kind, self.name = kind, name
        self.since = 0.0
        self.call: ModelCall | None = None
        """The model call that has ended this wait."""
        self._rollout = _rollout.get()

    def __enter__(self) -> Self:
        if self._rollout is not None:
            self._rollout.add(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._rollout is not None:
            self._rollout.remove(self, error)


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
