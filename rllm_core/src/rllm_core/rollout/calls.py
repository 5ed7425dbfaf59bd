"""Calling code we do not control: coroutines are awaited, blocking functions run where they cannot stop the others."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any


async def call(function: Callable[..., Any], *arguments: Any, blocking: bool) -> Any:
    """Call `function`; when `blocking` and not a coroutine function, in a thread of its own.

    The thread is a daemon made for this call: one that hangs past its timeout can neither use up a pool nor keep the
    process from ending.
    """
    if not blocking or inspect.iscoroutinefunction(function):
        result = function(*arguments)
        return await result if inspect.isawaitable(result) else result
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def deliver(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            setter(value)

    def work() -> None:
        try:
            outcome, setter = function(*arguments), future.set_result
        except BaseException as error:  # noqa: BLE001  (handed to whoever awaits the call)
            outcome, setter = _harmless(error), future.set_exception
        try:
            loop.call_soon_threadsafe(deliver, setter, outcome)
        except RuntimeError:
            return  # The loop is closed: the run is over and nobody waits for the answer.

    threading.Thread(target=work, name=f"rllm-{getattr(function, '__name__', 'call')}", daemon=True).start()
    result = await future
    return await result if inspect.isawaitable(result) else result


def _harmless(error: BaseException) -> Exception:
    """What a future can carry: StopIteration, SystemExit and cancellations mean something else to the event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
