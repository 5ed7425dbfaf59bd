"""Calls of external code. Coroutines are awaited. Blocking functions run in threads, so that they cannot block other
calls."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any


async def call(function: Callable[..., Any], *arguments: Any, blocking: bool) -> Any:
    """Call `function`. If `blocking` is true and it is not a coroutine function, it runs in its own thread.

    The thread is a daemon made for this call. If it hangs past its timeout, it does not occupy a thread pool and does
    not prevent the process from exiting.
    """
    if not blocking or inspect.iscoroutinefunction(function):
        result = function(*arguments)
        return await result if inspect.isawaitable(result) else result
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            setter(value)

    def work() -> None:
        try:
            outcome, setter = context.run(function, *arguments), future.set_result
        except BaseException as error:  # noqa: BLE001  (raised in the coroutine that awaits the call)
            outcome, setter = _harmless(error), future.set_exception
        try:
            loop.call_soon_threadsafe(deliver, setter, outcome)
        except RuntimeError:
            return  # The loop is closed: the run is over and no task waits for the result.

    threading.Thread(target=work, name=f"rllm-{getattr(function, '__name__', 'call')}", daemon=True).start()
    result = await future
    return await result if inspect.isawaitable(result) else result


def _harmless(error: BaseException) -> Exception:
    """Return an exception that a future can store. StopIteration, SystemExit and cancellations have a special meaning
    in the event loop, so they are wrapped."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
