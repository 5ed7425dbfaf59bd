"""Waiting for Ray: a call that fails, one whose process dies, and one that does not end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from expecting import check_error, expect_error

from rllm_core.errors import BackendError, LossError
from rllm_verl.calls import Driver
from rllm_verl.processes import Process, process_of

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]


def faulty_worker() -> type:
    """Made in a function: Ray sends such a class as it is, and the test's module cannot be imported elsewhere."""

    class Worker:
        """Does what workers do wrong."""

        def say(self, text: str) -> str:
            print(text, flush=True)  # noqa: T201
            return text

        def sleep(self, started: str) -> None:
            Path(started).touch()
            time.sleep(600)

        def fail(self) -> None:
            raise ValueError("the weights\nhave no name")

        def fail_elsewhere(self) -> None:
            print("ValueError: no memory for the cache", file=sys.stderr, flush=True)  # noqa: T201
            raise RuntimeError("The engine is dead. See stack trace (above) for the root cause.")

        def fail_as_ours(self) -> None:
            raise LossError("made-up", "Loss 'mine' failed.", "Fix it.")

    return Worker


@pytest.fixture
def worker() -> Iterator[Any]:
    handle = ray.remote(faulty_worker()).options(num_cpus=0).remote()
    yield handle
    ray.kill(handle)


@pytest.fixture
def process(worker: Any) -> Process:
    return process_of("worker 0", worker)


@pytest.fixture
def run(worker: Any, process: Process) -> Iterator[Callable[..., Any]]:
    driver = Driver(lambda: [process], lambda: ray.kill(worker))

    def run(call: Callable[[], Any], seconds: float = 60) -> Any:
        return asyncio.run(driver.run(call, doing="updating the policy", seconds=seconds, key="deadlines.update"))

    yield run
    driver.close()


def test_what_a_call_returns_is_returned(run: Callable[..., Any], worker: Any) -> None:
    assert run(lambda: ray.get(worker.say.remote("hello"))) == "hello"


def test_killed_worker_error_has_name_and_log(
    run: Callable[..., Any], worker: Any, process: Process, tmp_path: Path
) -> None:
    ray.get(worker.say.remote("my last words"))
    started = tmp_path / "started"

    def update() -> None:
        waiting = worker.sleep.remote(str(started))
        while not started.exists():
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        ray.get(waiting)

    values = ("updating the policy", f"worker 0 (process {process.pid}", "my last words", "--resume")
    with expect_error(BackendError, "process-died", *values):
        run(update)


def test_call_fails_at_its_deadline(run: Callable[..., Any], worker: Any, tmp_path: Path) -> None:
    with expect_error(BackendError, "process-timeout", "updating the policy", "1 second", "`deadlines.update`"):
        run(lambda: ray.get(worker.sleep.remote(str(tmp_path / "started"))), seconds=1)
    # The thread is free again: what it waited for has been killed.
    assert run(lambda: 1) == 1


def test_worker_error_is_one_line_with_its_place(run: Callable[..., Any], worker: Any, process: Process) -> None:
    with pytest.raises(BackendError) as raised:
        run(lambda: ray.get(worker.fail.remote()))
    told = "While updating the policy: worker 0 raised ValueError: the weights have no name "
    assert re.fullmatch(re.escape(told) + r"\(test_deadlines\.py, line \d+\)\.", raised.value.message)


def test_error_with_log_reference_includes_the_log(run: Callable[..., Any], worker: Any, process: Process) -> None:
    with pytest.raises(BackendError) as raised:
        run(lambda: ray.get(worker.fail_elsewhere.remote()))
    cause = "ValueError: no memory for the cache"
    check_error(raised.value, "worker-failed", "RuntimeError: The engine is dead.", cause)
    assert f"    {cause}" in raised.value.details.splitlines()


def test_a_process_that_cannot_start_says_why(run: Callable[..., Any]) -> None:
    class Unable:
        def __init__(self) -> None:
            raise OSError("no space left")

        def call(self) -> None:
            pass

    handle = ray.remote(Unable).options(num_cpus=0).remote()
    with expect_error(BackendError, "process-not-started", "OSError: no space left"):
        run(lambda: ray.get(handle.call.remote()))


def test_rllm_error_is_passed_on_unchanged(run: Callable[..., Any], worker: Any) -> None:
    with pytest.raises(LossError, match=r"^Loss 'mine' failed\.\nhint: Fix it\.$"):
        run(lambda: ray.get(worker.fail_as_ours.remote()))


def test_stuck_call_does_not_block_program_exit(process: Process) -> None:
    """As where Ray waits for machines that do not come: there is no process to kill yet."""
    driver = Driver(list, lambda: None)
    free = threading.Event()
    with pytest.raises(BackendError, match=r"no answer within 0\.2 seconds"):
        asyncio.run(driver.run(free.wait, doing="starting Ray", seconds=0.2, key="deadlines.start"))
    # What comes next does not wait behind it.
    assert asyncio.run(driver.run(lambda: 1, doing="ending Ray", seconds=60, key="deadlines.close")) == 1
    threads = [thread for thread in threading.enumerate() if thread.name == "rllm-verl"]
    assert all(thread.daemon for thread in threads)
    free.set()
    driver.close()
    for thread in threads:
        thread.join(timeout=60)


def test_all_calls_run_on_one_lasting_thread(run: Callable[..., Any]) -> None:
    """What Ray starts dies with the thread that started it."""
    first, second = run(threading.current_thread), run(threading.current_thread)
    assert first is second
    assert first.is_alive()
