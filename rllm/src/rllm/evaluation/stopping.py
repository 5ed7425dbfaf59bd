"""Stop a command's work on Ctrl-C and SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import click

SIGNALS = (signal.SIGINT, signal.SIGTERM)
T = TypeVar("T")


class StoppedError(Exception):
    """A signal ended the work."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.exit_code = 128 + number
        """Exit code of a command that this signal stopped."""


def run_command(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a command's work. A signal ends the command with the exit code of that signal."""
    try:
        return asyncio.run(run_until_signal(work))
    except StoppedError as error:
        click.echo("interrupted", err=True)
        click.get_current_context().exit(error.exit_code)


async def run_until_signal(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. The first Ctrl-C or SIGTERM cancels it. The next one has its previous effect.

    The handlers belong to the event loop, because a handler of `signal.signal` may run too late: a signal just before
    the loop waits does not wake the loop.

    Raises:
        StoppedError: a signal stopped it.
    """
    task, received = asyncio.ensure_future(work), list[int]()
    loop = asyncio.get_running_loop()
    handled = SIGNALS if threading.current_thread() is threading.main_thread() else ()

    def handle(number: int) -> None:
        received.append(number)
        for each in handled:
            loop.remove_signal_handler(each)
        task.cancel()

    for number in handled:
        loop.add_signal_handler(number, handle, number)
    try:
        return await task
    except asyncio.CancelledError:
        if received:
            raise StoppedError(received[0]) from None
        raise
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
