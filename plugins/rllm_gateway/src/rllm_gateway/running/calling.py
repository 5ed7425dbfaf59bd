"""Call an agent's function in the process of its rollout: ``python -m rllm_gateway.running.calling``."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import runpy
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from traceback import StackSummary, TracebackException
from typing import Any

from rllm_gateway.running.target import Target

FAILED = 1
_OURS = (str(Path(__file__).parents[1]), runpy.__file__, asyncio.__path__[0], importlib.__path__[0])
"""Files and directories with the code that calls the agent."""
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def call_and_leave(target: Target, order: Mapping[str, Any]) -> int:
    """Run the agent's file or module, call its function, and write its result.

    Args:
        target: the function.
        order: the order of a `fork_server`, with ``task``, ``reward_key`` and ``result``.

    Returns:
        The exit code: 0, or `FAILED` if the agent raised an error. The traceback is written to standard error.
    """
    from rllm_gateway.client import set_reward_key

    result = Path(order["result"])
    set_reward_key(order["reward_key"])
    try:
        function = _function_of(target)
        value = _call_function(function, order["task"])
        partial_result(result).write_text(json.dumps(value, default=_plain), encoding="utf-8")
        partial_result(result).replace(result)
    except SystemExit as error:
        if error.code in (None, 0):
            return 0
        sys.stderr.write(f"the agent exited with {error.code}\n")
        return FAILED
    except BaseException as error:  # noqa: BLE001  (an agent may raise anything; its traceback is the rollout's error)
        sys.stderr.write("".join(_agents_traceback(error).format()))
        return FAILED
    return 0


def partial_result(result: Path) -> Path:
    """Return the file that becomes `result` when it is whole. If the agent is killed, no result exists."""
    return result.with_suffix(".part")


def _agents_traceback(error: BaseException) -> TracebackException:
    """Return the traceback with the frames of the agent's own files only.

    It keeps the frames of installed packages if no frame is the agent's, and always removes ours.
    """
    shown = TracebackException.from_exception(error)
    each: TracebackException | None = shown
    while each is not None:
        outside = [frame for frame in each.stack if not _is_below(frame.filename, _OURS)]
        own = [frame for frame in outside if not _is_below(frame.filename, _INSTALLED)]
        if own and own[-1] is not each.stack[-1]:
            # A library raised the error. Its inner errors would hide the agent's line.
            each.__cause__ = each.__context__ = None
        each.stack = StackSummary.from_list(own or outside)
        each = each.__cause__ or each.__context__
    return shown


def _is_below(file: str, directories: tuple[str, ...]) -> bool:
    return file.startswith(("<frozen", *directories))


def _function_of(target: Target) -> Callable[..., Any]:
    if target.is_file:
        path = Path(target.module).expanduser().resolve()
        sys.path.insert(0, str(path.parent))
        names = runpy.run_path(str(path), run_name=path.stem)
        function = names.get(target.function)
    else:
        function = getattr(importlib.import_module(target.module), target.function, None)
    if not callable(function):
        raise TypeError(f"{target.module} has no function {target.function!r}")
    return function  # type: ignore[no-any-return]


def _call_function(function: Callable[..., Any], task: Mapping[str, Any]) -> Any:
    """Call the function with the task, and with the session if it has a parameter ``session``."""
    from rllm_gateway.client import current_session

    takes_session = "session" in inspect.signature(function).parameters
    value = function(dict(task), **({"session": current_session()} if takes_session else {}))
    return asyncio.run(_await_value(value)) if inspect.isawaitable(value) else value


async def _await_value(value: Any) -> Any:
    return await value


def _plain(value: Any) -> Any:
    """Convert numbers of numpy and torch, and arrays with one element, to JSON data."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"the agent returned {value!r:.80}; return a number, text, or a dict with `reward`")


if __name__ == "__main__":
    module, name = sys.argv[1:]
    sys.exit(call_and_leave(Target(module, name), json.loads(sys.stdin.read())))
