"""A function in a file, as ``FILE.py:FUNCTION``."""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from rllm_core.errors import ConfigError, did_you_mean
from rllm_core.files import open_to_read

KEY = "rllm.workflow.workflow_args.tools"


def load_function(tool: str, key: str = KEY) -> Callable[..., Any]:
    """Run the file, once for all of its functions, and return this function or class.

    Args:
        tool: ``FILE.py:FUNCTION``.
        key: config key that names it, for errors.

    Raises:
        ConfigError: the file is not there, fails (naming the line), or has no such function; or none is named.
    """
    file, _, name = (tool, "", "") if tool.endswith(".py") else tool.rpartition(":")
    if not file:
        raise ConfigError(
            "bad-function-name", f"{key} contains {tool!r}.", "Give FILE.py:FUNCTION, such as tools.py:search."
        )
    path = Path(file).expanduser()
    try:
        with open_to_read(path) as opened:
            stamp = os.fstat(opened.fileno())
    except OSError as error:
        raise ConfigError(
            "file-unreadable",
            f"{path} cannot be read: {error.strerror or error}.",
            f"Paths of tools start from the folder the command runs in, {Path.cwd()}.",
        ) from error
    functions = vars(_module(path.resolve(), stamp.st_mtime_ns, stamp.st_size))
    if not callable(found := functions.get(name)):
        known = [key for key, value in functions.items() if callable(value) and not key.startswith("_")]
        there = ", ".join(sorted(known)) or "none"
        if not name.isidentifier():
            raise ConfigError(
                "bad-function-name",
                f"{tool!r} has a file, but no function in it.",
                f"Add a function: {path}:{min(known, default='search')}. Functions of the file: {there}.",
            )
        raise ConfigError(
            "unknown-function",
            f"{path} has no function {name!r}.",
            did_you_mean(name, known) or f"Its functions: {there}.",
        )
    return found  # type: ignore[no-any-return]


@lru_cache(maxsize=64)
def _module(path: Path, changed_ns: int, size: int) -> ModuleType:
    """The file, run once: its tools share its variables. `changed_ns` and `size` tell it from what it was."""
    name = f"rllm_tools_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # annotations and dataclasses look modules up
    try:
        # Not by an import: that keeps compiled files, which may be older than a file of the same second.
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(
            "plugin-failed",
            f"{_place(error, path)}: {type(error).__name__}: {error}.",
            f"Correct that line, and check with: python {path}",
        ) from error
    return module


def _place(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{path}, line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}, line {lines[-1]}" if lines else str(path)
