"""Functions in a user's Python files, as ``FILE.py:FUNCTION``: parse a file without running it, and run it once."""

from __future__ import annotations

import ast
import hashlib
import sys
import traceback
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from rllm_core.errors import ConfigError, did_you_mean
from rllm_core.files import open_to_read

Definition = ast.FunctionDef | ast.AsyncFunctionDef


def split_function(function: str) -> tuple[str, str]:
    """Split ``FILE.py:FUNCTION`` into its parts. The second part is empty if there is only a file."""
    file, _, name = (function, "", "") if function.endswith(".py") else function.rpartition(":")
    return file, name


def read_source(function: str) -> dict[str, str]:
    """Return the path in ``FILE.py:FUNCTION``, with the file's content.

    Raises:
        ConfigError: the file cannot be read.
    """
    path = Path(split_function(function)[0]).expanduser()
    return {str(path): read_file(path).decode("utf-8", "backslashreplace")}


def read_file(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with open_to_read(path) as file:
            return file.read()
    except OSError as error:
        raise ConfigError(
            "file-unreadable",
            f"{path} cannot be read: {error.strerror or error}.",
            f"Paths of Python files start from the directory the command runs in, {Path.cwd()}.",
        ) from error


def parse_file(path: Path) -> ast.Module:
    """Parse a file.

    Raises:
        ConfigError: it cannot be read, or has a syntax error.
    """
    return _parse(path, read_file(path))


def _parse(path: Path, content: bytes) -> ast.Module:
    try:
        return ast.parse(content, str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise ConfigError(
            "syntax-error",
            f"{path}{f', line {line}' if line else ''}: syntax error: {getattr(error, 'msg', error)}.",
            f"Correct that line, and check with: python -m py_compile {path}",
        ) from error


def defined_functions(tree: ast.Module) -> dict[str, Definition]:
    """Return the functions at the top of a file, by name."""
    return {each.name: each for each in tree.body if isinstance(each, Definition)}


def may_be_bound(tree: ast.Module, name: str) -> bool:
    """True if code other than a top-level `def` may bind the name: an assignment, an import, a class, an `if`."""
    stars = any(isinstance(each, ast.ImportFrom) and each.names[0].name == "*" for each in ast.walk(tree))
    bound = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    aliases = [each for each in ast.walk(tree) if isinstance(each, ast.alias)]
    bound |= {each.asname or each.name for each in aliases}
    nested = [each for top in tree.body if isinstance(top, ast.If | ast.Try | ast.With) for each in ast.walk(top)]
    bound |= {each.name for each in nested if isinstance(each, Definition)}
    bound |= {each.name for each in tree.body if isinstance(each, ast.ClassDef)}
    return stars or name in bound


def run_file(path: Path) -> ModuleType:
    """Run a file, and return its module. A file that has not changed since its last run is not run again.

    Raises:
        ConfigError: the file cannot be read, has a syntax error, or fails. The message has the line.
    """
    return _run(path, read_file(path))


@lru_cache(maxsize=64)
def _run(path: Path, content: bytes) -> ModuleType:
    # Do not import it, because Python keeps compiled files, which may be older than a file of the same second.
    code = compile(_parse(path, content), str(path), "exec")
    name = f"rllm_file_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses and pickle look modules up
    try:
        exec(code, module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(
            "plugin-failed",
            f"{find_place(error, path)}: {type(error).__name__}: {error}.",
            f"Correct that line, and check with: python {path}",
        ) from error
    return module


def find_place(error: BaseException, path: Path) -> str:
    """Return the file and line of an error: the last line of `path` that it passed, or else its very last line."""
    frames = traceback.extract_tb(error.__traceback__)
    of_file = [frame for frame in frames if frame.filename == str(path)]
    frame = (of_file or frames)[-1] if frames else None
    return f"{frame.filename}, line {frame.lineno}" if frame else str(path)


def unnamed_function(function: str, path: object, known: Collection[str], example: str) -> ConfigError:
    """Return the error for a file without a function name."""
    return ConfigError(
        "bad-function-name",
        f"{function!r} has a file, but no function in it.",
        f"Add a function: {path}:{example}. Functions of the file: {', '.join(sorted(known)) or 'none'}.",
    )


def missing_function(path: object, name: str, known: Collection[str]) -> ConfigError:
    """Return the error for a function that a file does not have."""
    there = ", ".join(sorted(known)) or "none"
    hint = did_you_mean(name, known) or f"Its functions: {there}."
    return ConfigError("unknown-function", f"{path} has no function {name!r}.", hint)
