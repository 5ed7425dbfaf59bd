"""Calls of Ray and verl. Every call has a time limit, and a call that exceeds it is stopped.

A failure becomes one error with a remedy and the last log lines of the failed process.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import re
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ray.exceptions import RayActorError, RayError, RayTaskError

from rllm_core.errors import BackendError, RllmError
from rllm_core.notices import one_line
from rllm_verl.processes import Process, dead_daemon, log_tails

T = TypeVar("T")
LOOK_SECONDS = 0.5
"""Seconds between checks that Ray still runs. Without its processes, Ray waits a minute and then stops this process."""


class Driver:
    """Runs verl's blocking calls one at a time on a separate thread, so that the event loop stays free.

    A thread cannot be interrupted. So if a call exceeds its time limit, `abandon` kills the processes for which it
    waits, and Ray then raises an error in the call. If the call still does not end, its thread is abandoned. An
    abandoned thread does not prevent the program from ending.
    """

    def __init__(self, processes: Callable[[], Sequence[Process]], abandon: Callable[[], None]) -> None:
        """Create the thread. No call runs yet.

        Args:
            processes: returns the processes whose logs an error shows.
            abandon: stops the processes for which calls wait.
        """
        self._processes = processes
        self._abandon = abandon
        self._one_at_a_time = asyncio.Lock()
        self._threads = [_Thread()]

    async def run(
        self,
        call: Callable[[], T],
        *,
        doing: str,
        seconds: float,
        key: str,
        find_end: Callable[[], str | None] = dead_daemon,
    ) -> T:
        """Run a call to its end.

        Args:
            call: a blocking function.
            doing: description of the call for errors, for example "updating the policy".
            seconds: time limit.
            key: config key of the time limit.
            find_end: returns the name of a Ray process that has ended, like `dead_daemon`. Pass a different function
                for a call that stops Ray itself.

        Raises:
            RllmError: the call failed or exceeded its time limit, or Ray stopped during the call.
        """
        async with self._one_at_a_time:
            future = self._threads[-1].begin(call)
            gone = await _wait(future, seconds, find_end)
            if not future.done():
                late = timeout_error(doing, seconds, key, self._processes())
                error = late if gone is None else ray_ended_error(gone, doing)
                self._abandon()
                # The call may still block, so later calls get a new thread.
                self._threads.append(_Thread())
                raise error
        try:
            return future.result()
        except Exception as error:
            raise as_backend_error(error, doing, self._processes()) from error

    async def free(self, end_waits: Callable[[], None], seconds: float) -> None:
        """Wait until an abandoned call ends.

        Args:
            end_waits: stops the processes for which such a call waits. It is called repeatedly, because the call may
                have started new ones.
            seconds: time limit.
        """
        end = asyncio.get_running_loop().time() + seconds
        while self.is_busy and asyncio.get_running_loop().time() < end:
            end_waits()
            await asyncio.sleep(LOOK_SECONDS)

    @property
    def is_busy(self) -> bool:
        """True if an abandoned call is still running."""
        return any(thread.is_busy for thread in self._threads)

    def close(self) -> None:
        """Accept no more calls."""
        for thread in self._threads:
            thread.end()


async def _wait(future: asyncio.Future[Any], seconds: float, find_end: Callable[[], str | None]) -> str | None:
    """Wait until the call is done, its time is over, or a Ray process has ended. Return the result of `find_end`."""
    end = asyncio.get_running_loop().time() + seconds
    while (left := end - asyncio.get_running_loop().time()) > 0:
        done, _ = await asyncio.wait([future], timeout=min(LOOK_SECONDS, left))
        if done:
            return None
        if (gone := find_end()) is not None:
            return gone
    return None


def restore_sigterm() -> None:
    """Restore the SIGTERM handler from before `ray.init`. Ray's handler aborts the program after three seconds."""
    handler = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(signal.SIGTERM, handler)


class _Thread:
    """A thread that makes calls one after the other. It lives as long as the run and ends with the program.

    It must live that long because the processes of a new Ray cluster stop when their starting thread ends.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.is_busy = False
        threading.Thread(target=self._work, name="rllm-verl", daemon=True).start()

    def begin(self, call: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def deliver(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)  # type: ignore[arg-type]
            else:
                future.set_exception(error)
                future.exception()  # mark it as retrieved, because an abandoned call's error is never read

        def work() -> None:
            result, failure = None, None
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001  (the caller receives it)
                failure = error
            with contextlib.suppress(RuntimeError):  # the event loop is closed, so no caller is waiting
                loop.call_soon_threadsafe(deliver, result, failure)

        self.is_busy = True
        self._calls.put(work)
        return future

    def end(self) -> None:
        """Stop the thread after its last call."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            self.is_busy = False


_PLACE = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_COLOR = re.compile(r"\x1b\[[\d;]*m")
_PROCESS = re.compile(r"\(pid=(?P<pid>\d+), ip=(?P<node>[^,)\s]+)")


def strip_colors(text: str) -> str:
    """Return `text` without terminal color codes."""
    return _COLOR.sub("", text)


def find_place(traceback: str) -> str:
    """Return the last place in a traceback as ``(worker.py, line 12)``. Empty if it contains no file."""
    places = list(_PLACE.finditer(traceback))
    if not places:
        return ""
    file, line = places[-1]["file"], places[-1]["line"]
    return f"({file.rpartition('/')[2]}, line {line})"


def find_process(traceback: str) -> tuple[int, str]:
    """Return the id and address of the last process in Ray's traceback. 0 and "" if it contains no process."""
    found = list(_PROCESS.finditer(traceback))
    return (int(found[-1]["pid"]), found[-1]["node"]) if found else (0, "")


LONGEST = 500
"""Maximum number of characters of another library's message."""
RESUME = "Run the same command with --resume to continue from the newest checkpoint."


def as_backend_error(error: BaseException, doing: str, processes: Sequence[Process]) -> RllmError:
    """Return an error that describes a failure during `doing` in one paragraph.

    An rllm error from a worker is returned unchanged, because it already has a remedy.

    Args:
        error: the exception in this process.
        doing: the operation, such as "updating the policy".
        processes: the processes that may have failed.
    """
    if isinstance(error, RayTaskError):
        return _explain_task_error(error, doing, processes)
    if isinstance(error, RllmError):
        return error
    if isinstance(error, RayError) and (daemon := dead_daemon()) is not None:
        return ray_ended_error(daemon, doing)
    if isinstance(error, RayActorError):
        return _explain_actor_error(error, doing, processes)
    details = log_tails(processes) if isinstance(error, RayError | OSError) else ""
    return BackendError(
        "worker-failed", f"While {doing}: {type(error).__name__}: {_shorten(str(error))}", details=details
    )


def timeout_error(doing: str, seconds: float, key: str, processes: Sequence[Process]) -> BackendError:
    """Return the error for an operation that exceeded its time limit."""
    return BackendError(
        "process-timeout",
        f"While {doing}: no answer within {seconds:g} seconds (`{key}`).",
        f"If the operation needs more time, raise {key}. Otherwise read the logs. {RESUME}",
        log_tails(processes),
    )


def ray_ended_error(daemon: str, doing: str) -> BackendError:
    """Return the error for a Ray process that ended. `daemon` is its name from `dead_daemon`."""
    return BackendError(
        "process-died",
        f"While {doing}: Ray stopped, because its {daemon} ended.",
        f"The system may have killed it because memory ran out: check `dmesg`. {RESUME}",
    )


def _explain_task_error(error: RayTaskError, doing: str, processes: Sequence[Process]) -> RllmError:
    cause: BaseException = error
    # A process that calls a second process raises the second process's error.
    while isinstance(cause, RayTaskError):
        cause = cause.cause
    if isinstance(cause, RllmError):
        return cause
    if isinstance(cause, RayActorError):
        return _explain_actor_error(cause, doing, processes)
    # Ray raises an object with the cause's class that contains only the traceback's text.
    text = strip_colors(str(error))
    process, where = _origin(text, processes), find_place(text)
    what = f"While {doing}: {process.name} raised {type(cause).__name__}: {_shorten(str(cause))} {where}".rstrip()
    return BackendError("worker-failed", f"{what}.", "Add --debug to see the traceback.", log_tails([process]))


def _explain_actor_error(error: RayActorError, doing: str, processes: Sequence[Process]) -> BackendError:
    """Return the error for a process that died or could not start."""
    if error.actor_init_failed:
        text = strip_colors(str(error))
        process = _origin(text, processes)
        why = _shorten("".join(text.strip().splitlines()[-1:]))
        return BackendError(
            "process-not-started",
            f"While {doing}: {process.name} could not start: {why}.",
            details=log_tails([process]),
        )
    dead = [process for process in processes if process.actor_id and process.actor_id == str(error.actor_id or "")]
    names = ", ".join(f"{process.name} (process {process.pid} on {process.node})" for process in dead)
    return BackendError(
        "process-died",
        f"While {doing}: {names or 'a process of the run'} died.",
        "Read its log for the cause. If the log shows none, check `dmesg`: the system may have killed it because "
        f"memory ran out. {RESUME}",
        log_tails(dead or processes),
    )


def _origin(traceback: str, processes: Sequence[Process]) -> Process:
    """Return the process that raised first, according to the text of Ray's error."""
    pid, node = find_process(traceback)
    known = (process for process in processes if (process.pid, process.node) == (pid, node))
    return next(known, Process(f"process {pid}", pid, node, ""))


def _shorten(text: str) -> str:
    return one_line(text, LONGEST) or "no message"
