"""Signals of `rllm train` reach a run whatever its event loop is doing."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import Any

import pytest

from rllm.cli.train import stopping_on_signals

HANGS = 20.0
"""Seconds after which a signal that was not seen counts as lost."""


class Trainer:
    """Notes that it was stopped, as `TrainingLoop` does."""

    has_begun = True

    def __init__(self) -> None:
        self.stopped = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self.stopped.set)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_wakes_a_loop_that_waits(number: int) -> None:
    """Another thread takes it, which leaves the wait of the main one as it is: so does one just before the wait."""

    async def wait() -> list[int]:
        trainer: Any = Trainer()
        with stopping_on_signals(trainer) as received:
            thread = threading.Thread(target=_take, args=(number,))
            thread.start()
            lost = asyncio.Event()
            asyncio.get_running_loop().call_later(HANGS, lost.set)
            await trainer.stopped.wait()
        thread.join()
        assert not lost.is_set(), "something else has woken the loop"
        return received

    assert asyncio.run(wait()) == [number]


def _take(number: int) -> None:
    # The loop waits by then. On a machine so slow that it does not, the test shows nothing, and passes.
    time.sleep(0.3)
    signal.pthread_kill(threading.get_ident(), number)


def test_second_signal_ends_loop_and_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    async def busy() -> None:
        trainer: Any = Trainer()
        with stopping_on_signals(trainer):
            signal.raise_signal(signal.SIGTERM)
            await trainer.stopped.wait()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)

    asyncio.run(busy())
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
