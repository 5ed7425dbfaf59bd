"""Check a Python file with a reward function without running it, and load the function."""

from __future__ import annotations

import ast
import hashlib
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from rllm.tasks.signatures import Parameters, UnfitError, check_fits
from rllm_core.errors import ConfigError, did_you_mean
from rllm_core.files import open_to_read

SIGNATURES = (
    "Write def {name}(rollout), def {name}(prompts, completions, **columns) as for TRL, or "
    "def {name}(data_source, solution_str, ground_truth, extra_info) as for verl."
)


def check_function(function: str) -> None:
    """Look at ``FILE.py:FUNCTION`` without running anything.

    Raises:
        ConfigError: the file is not there or has a syntax error, its function is not named, missing, or has another
            signature, or a module that the file imports at its top is not installed.
    """
    path, name = split(function)
    tree = _parsed(path)
    defined = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    if not name.isidentifier():
        raise _unnamed(function, path, defined)
    if name in defined:
        place = f"{path}, line {defined[name].lineno}"
        # A decorator may change what a function takes.
        if not defined[name].decorator_list:
            _check_signature(Parameters.of_source(defined[name].args), name, place)
    elif not _may_be_bound(tree, name):
        raise _missing(path, name, list(defined))
    _check_imports(tree, path)


def check_columns(function: str, data: Mapping[str, Any]) -> None:
    """Check that a task has the columns that a function reads, as far as the signature shows them.

    Raises:
        ConfigError: a column is missing, or the task has no answer for verl's ``ground_truth``.
    """
    path, name = split(function)
    defined = [each for each in _parsed(path).body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = next((each for each in defined if each.name == name and not each.decorator_list), None)
    if found is None:
        return
    try:
        check_fits(Parameters.of_source(found.args), data)
    except UnfitError as error:
        raise ConfigError(
            "bad-reward-signature",
            f"{path}, line {found.lineno}: {name} does not fit the tasks: {error}.",
            "Rename the function's parameter, or the column (`columns` of dataset hf).",
        ) from error


def is_coroutine(function: str) -> bool:
    """True if the file defines the function with ``async def``. The file is parsed, not run."""
    path, name = split(function)
    return any(isinstance(each, ast.AsyncFunctionDef) and each.name == name for each in _parsed(path).body)


def load_function(function: str) -> tuple[Callable[..., Any], Parameters]:
    """Run the file and return its function, with the function's parameters.

    Raises:
        ConfigError: as `check_function`, or the file fails. The message then has the line.
    """
    path, name = split(function)
    module = _run(path)
    found = getattr(module, name, None)
    if not callable(found):
        raise _missing(path, name, [key for key, value in vars(module).items() if callable(value)])
    try:
        parameters = Parameters.of_function(found)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "bad-reward-signature", f"{path}: {name} has no signature: {error}.", SIGNATURES.format(name=name)
        ) from error
    line = getattr(getattr(found, "__code__", None), "co_firstlineno", None)
    _check_signature(parameters, name, f"{path}, line {line}" if line else str(path))
    return found, parameters


def read_source(function: str) -> dict[str, str]:
    """Return the file's path as the user wrote it, with the file's content.

    Raises:
        ConfigError: the file cannot be read.
    """
    path, _ = split(function)
    return {str(path): _read(path).decode("utf-8", "backslashreplace")}


def compute_digest(function: str) -> str:
    """SHA-256 of the file.

    Raises:
        ConfigError: the file cannot be read.
    """
    return hashlib.sha256(_read(split(function)[0])).hexdigest()


def split(function: str) -> tuple[Path, str]:
    """Split ``FILE.py:FUNCTION`` into its parts. The second part is empty if there is only a file."""
    file, _, name = (function, "", "") if function.endswith(".py") else function.rpartition(":")
    return Path(file).expanduser(), name


def find_place(error: BaseException, path: Path) -> str:
    """File and line where an error arose: the last line of the file that it passed, else the last line at all."""
    frames = traceback.extract_tb(error.__traceback__)
    of_file = [frame for frame in frames if frame.filename == str(path)]
    frame = (of_file or frames)[-1] if frames else None
    return f"{frame.filename}, line {frame.lineno}" if frame else str(path)


def _read(path: Path) -> bytes:
    try:
        with open_to_read(path) as file:
            return file.read()
    except OSError as error:
        raise ConfigError(
            "file-unreadable",
            f"{path} cannot be read: {error.strerror or error}.",
            f"Paths of reward functions start from the folder the command runs in, {Path.cwd()}.",
        ) from error


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(_read(path), str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise ConfigError(
            "syntax-error",
            f"{path}{f', line {line}' if line else ''}: syntax error: {getattr(error, 'msg', error)}.",
            f"Correct that line, and check with: python -m py_compile {path}",
        ) from error


def _run(path: Path) -> ModuleType:
    """Not by an import: that keeps compiled files, which may be older than a file of the same second."""
    code = compile(_parsed(path), str(path), "exec")
    name = f"rllm_reward_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
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


def _check_signature(parameters: Parameters, name: str, place: str) -> None:
    if parameters.style is None:
        taken = ", ".join(parameters.names)
        raise ConfigError(
            "bad-reward-signature", f"{place}: {name}({taken}) is not a reward function.", SIGNATURES.format(name=name)
        )


def _check_imports(tree: ast.Module, path: Path) -> None:
    """Check that imported top-level packages exist. Looking for submodules would import code. Skip `if` and `try`."""
    for each in tree.body:
        names = [alias.name for alias in each.names] if isinstance(each, ast.Import) else []
        if isinstance(each, ast.ImportFrom) and each.module and not each.level:
            names = [each.module]
        for package in (name.partition(".")[0] for name in names):
            if package not in sys.modules and find_spec(package) is None:
                raise ConfigError(
                    "module-not-found",
                    f"{path}, line {each.lineno}: there is no module {package!r}.",
                    f"Install it, or add its folder to PYTHONPATH. The folder of {path.name} is not searched.",
                )


def _may_be_bound(tree: ast.Module, name: str) -> bool:
    """True if code other than a top-level `def` may bind the name: an assignment, an import, a class, an `if`."""
    stars = any(isinstance(each, ast.ImportFrom) and each.names[0].name == "*" for each in ast.walk(tree))
    bound = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    aliases = [each for each in ast.walk(tree) if isinstance(each, ast.alias)]
    bound |= {each.asname or each.name for each in aliases}
    nested = [each for top in tree.body if isinstance(top, ast.If | ast.Try | ast.With) for each in ast.walk(top)]
    bound |= {each.name for each in nested if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    bound |= {each.name for each in tree.body if isinstance(each, ast.ClassDef)}
    return stars or name in bound


def _unnamed(function: str, path: Path, defined: Mapping[str, ast.FunctionDef | ast.AsyncFunctionDef]) -> ConfigError:
    fitting = (name for name, each in defined.items() if Parameters.of_source(each.args).style is not None)
    there = ", ".join(sorted(defined)) or "none"
    return ConfigError(
        "bad-function-name",
        f"{function!r} has a file, but no function in it.",
        f"Add a function: {path}:{next(fitting, 'score')}. Functions of the file: {there}.",
    )


def _missing(path: Path, name: str, known: list[str]) -> ConfigError:
    there = ", ".join(sorted(known)) or "none"
    return ConfigError(
        "unknown-function", f"{path} has no function {name!r}.", did_you_mean(name, known) or f"Its functions: {there}."
    )
