"""A function in a file, as ``FILE.py:FUNCTION``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rllm.builtin.tasks.function_file import missing_function, run_file, split_function, unnamed_function
from rllm_core.errors import ConfigError

KEY = "rllm.workflow.workflow_args.tools"


def load_function(tool: str, key: str = KEY) -> Callable[..., Any]:
    """Run the file, once for all of its functions, and return this function or class.

    Args:
        tool: ``FILE.py:FUNCTION``.
        key: config key that names it, for errors.

    Raises:
        ConfigError: the file is not there, fails (naming the line), or has no such function; or none is named.
    """
    file, name = split_function(tool)
    if not file:
        raise ConfigError(
            "bad-function-name", f"{key} contains {tool!r}.", "Give FILE.py:FUNCTION, such as tools.py:search."
        )
    path = Path(file).expanduser()
    functions = vars(run_file(path))
    if not callable(found := functions.get(name)):
        known = [key for key, value in functions.items() if callable(value) and not key.startswith("_")]
        if not name.isidentifier():
            raise unnamed_function(tool, path, known, min(known, default="search"))
        raise missing_function(path, name, known)
    return found  # type: ignore[no-any-return]
