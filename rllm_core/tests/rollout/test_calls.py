"""Calling code that may block, hang or fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rllm_core.rollout.calls import call


@pytest.mark.parametrize("blocking", [True, False])
def test_coroutines_are_awaited(blocking: bool) -> None:
    async def add(one: int, other: int) -> int:
        await asyncio.sleep(0)
        return one + other

    assert asyncio.run(call(add, 1, 2, blocking=blocking)) == 3
    assert asyncio.run(call(lambda: add(1, 2), blocking=blocking)) == 3


def test_function_without_blocking_runs_in_loops_thread() -> None:
    assert asyncio.run(call(threading.get_ident, blocking=False)) == threading.get_ident()


def test_blocking_functions_run_in_a_separate_thread() -> None:
    async def both() -> list[int]:
        meet = threading.Barrier(2, timeout=100)  # neither returns before both run

        def work() -> int:
            meet.wait()
            return threading.get_ident()

        return await asyncio.gather(call(work, blocking=True), call(work, blocking=True))

    assert len({*asyncio.run(both()), threading.get_ident()}) == 3


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("blocking", [True, False])
def test_an_exception_reaches_the_caller(blocking: bool) -> None:
    with pytest.raises(KeyError, match="lost"):
        asyncio.run(call(_raise, KeyError("lost"), blocking=blocking))


@pytest.mark.parametrize(
    "error", [StopIteration("empty"), SystemExit(3), asyncio.CancelledError("gone"), KeyboardInterrupt()], ids=repr
)
def test_control_flow_errors_arrive_as_runtime_errors(error: BaseException) -> None:
    async def run() -> None:
        async with asyncio.timeout(100):
            await call(_raise, error, blocking=True)

    with pytest.raises(RuntimeError, match=type(error).__name__) as caught:
        asyncio.run(run())
    assert caught.value.__cause__ is error


def test_hanging_function_blocks_no_other_call() -> None:
    release = threading.Event()

    async def impatient() -> str:
        try:
            async with asyncio.timeout(0.05):
                await call(release.wait, blocking=True)
        except TimeoutError:
            return "timed out"
        return "came back"

    async def run() -> list[Any]:
        hanging = [impatient() for _ in range(50)]  # more than any pool has threads
        return await asyncio.gather(*hanging, call(lambda: "quick", blocking=True))

    try:
        assert asyncio.run(run()) == ["timed out"] * 50 + ["quick"]
    finally:
        release.set()


def test_result_after_the_timeout_is_dropped() -> None:
    release = threading.Event()
    answered = threading.Event()

    def work() -> None:
        release.wait()
        answered.set()
        raise ValueError("nobody waits for this")

    async def run(problems: list[dict[str, Any]]) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, problem: problems.append(problem))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await call(work, blocking=True)
        release.set()
        await asyncio.to_thread(answered.wait)
        await asyncio.sleep(0.02)

    problems: list[dict[str, Any]] = []
    asyncio.run(run(problems))
    assert problems == []


ENDED = """
import asyncio, threading, time
from rllm_core.rollout.calls import call

async def main():
    asyncio.ensure_future(call(time.sleep, 0.1, blocking=True))
    try:
        async with asyncio.timeout(0.05):
            await call(threading.Event().wait, blocking=True)
    except TimeoutError:
        print("timed out")

asyncio.run(main())
time.sleep(0.2)
print("end")
"""
"""One answer comes after the loop is closed, and one never."""


def test_hanging_functions_do_not_delay_the_exit(rllm_from_inside: Any) -> None:
    done = rllm_from_inside(ENDED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "timed out\nend\n", "")


def test_a_cancelled_caller_stops_waiting() -> None:
    release: Callable[[], None]
    event = threading.Event()
    release = event.set

    async def run() -> bool:
        waiting = asyncio.ensure_future(call(event.wait, blocking=True))
        await asyncio.sleep(0.02)
        waiting.cancel()
        await asyncio.wait([waiting], timeout=100)
        return waiting.cancelled()

    try:
        assert asyncio.run(run())
    finally:
        release()
