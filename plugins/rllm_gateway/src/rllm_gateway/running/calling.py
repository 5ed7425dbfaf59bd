"""Call an agent's function in the process of its rollout: ``python -m rllm_gateway.running.calling``."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rllm_gateway.running.target import Target

FAILED = 1
RESULT = "RLLM_RESULT_FILE"
"""Environment variable with the path of the file to which the process writes the function's result as JSON."""


def call_and_leave(target: Target, task: Mapping[str, Any], result: Path) -> int:
    """Run the agent's file or module, call its function, and write its result.

    Returns:
        The exit code: 0, or `FAILED` if the agent raised an error. The traceback is written to standard error.
    """
    try:
        function = _function_of(target)
        returned = _called(function, task)
        result.write_text(json.dumps(returned, default=_plain), encoding="utf-8")
    except SystemExit as error:
        if error.code in (None, 0):
            return 0
        sys.stderr.write(f"the agent exited with {error.code}\n")
        return FAILED
    except BaseException:  # noqa: BLE001  (an agent may raise anything, and its traceback is the error of the rollout)
        traceback.print_exc()
        return FAILED
    return 0


def _function_of(target: Target) -> Callable[..., Any]:
    if target.is_file:
        path = Path(target.place).expanduser().resolve()
        sys.path.insert(0, str(path.parent))
        names = runpy.run_path(str(path), run_name=path.stem)
        function = names.get(target.function)
    else:
        function = getattr(importlib.import_module(target.place), target.function, None)
    if not callable(function):
        raise TypeError(f"{target.place} has no function {target.function!r}")
    return function  # type: ignore[no-any-return]


def _called(function: Callable[..., Any], task: Mapping[str, Any]) -> Any:
    """Call the function with the task, and with the session if it has a parameter ``session``."""
    from rllm_gateway.client import current_session

    takes_session = "session" in inspect.signature(function).parameters
    returned = function(dict(task), **({"session": current_session()} if takes_session else {}))
    return asyncio.run(_awaited(returned)) if inspect.isawaitable(returned) else returned


async def _awaited(returned: Any) -> Any:
    return await returned


def _plain(value: Any) -> Any:
    """Convert numbers of numpy and torch, and arrays with one element, to JSON data."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"the agent returned {value!r:.80}; return a number, text, or a dict with `reward`")


if __name__ == "__main__":
    place, name = sys.argv[1:]
    sys.exit(call_and_leave(Target(place, name), json.loads(sys.stdin.read()), Path(os.environ[RESULT])))
