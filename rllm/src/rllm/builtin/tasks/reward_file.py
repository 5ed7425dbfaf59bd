"""Check a Python file with a reward function without running it, and load the function."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rllm.builtin.tasks.function_file import (
    defined_functions,
    may_be_bound,
    missing_function,
    parse_file,
    read_file,
    run_file,
    split_function,
    unnamed_function,
)
from rllm.builtin.tasks.signatures import COMPARING, Parameters, SignatureError, check_fits
from rllm_core.contracts.reward import RewardScope
from rllm_core.errors import ConfigError

SIGNATURES = (
    "Write def {name}(rollout), def {name}(rollouts), def {name}(prompts, completions, **columns) as for TRL, or "
    "def {name}(data_source, solution_str, ground_truth, extra_info) as for verl."
)


def check_function(function: str) -> None:
    """Look at ``FILE.py:FUNCTION`` without running anything.

    Raises:
        ConfigError: the file is not there or has a syntax error, its function is not named, missing, or has another
            signature, or a module that the file imports at its top is not installed.
    """
    path, name = split(function)
    tree = parse_file(path)
    defined = defined_functions(tree)
    if not name.isidentifier():
        fitting = (each for each, found in defined.items() if Parameters.of_source(found.args).style is not None)
        raise unnamed_function(function, path, defined, next(fitting, "score"))
    if name in defined:
        place = f"{path}, line {defined[name].lineno}"
        # A decorator may change what a function takes.
        if not defined[name].decorator_list:
            _check_signature(Parameters.of_source(defined[name].args), name, place)
    elif not may_be_bound(tree, name):
        raise missing_function(path, name, defined)
    _check_imports(tree, path)


def check_columns(function: str, data: Mapping[str, Any]) -> None:
    """Check that a task has the columns that a function reads, as far as the signature shows them.

    Raises:
        ConfigError: a column is missing, or the task has no answer for verl's ``ground_truth``.
    """
    path, name = split(function)
    state = path.stat() if path.exists() else None
    found = _find_definition(path, name, state and (state.st_mtime_ns, state.st_size))
    if found is None or found.decorator_list:
        return
    try:
        check_fits(Parameters.of_source(found.args), data)
    except SignatureError as error:
        raise ConfigError(
            "bad-reward-signature",
            f"{path}, line {found.lineno}: {name} {error}.",
            "Rename the function's parameter, or the column (`columns` of dataset hf).",
        ) from error


@lru_cache(8)
def _find_definition(path: Path, name: str, version: object) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return a function of the file. `version` changes with the file, which is checked for every task."""
    return defined_functions(parse_file(path)).get(name)


def find_scope(function: str) -> RewardScope:
    """Return ``group`` if the function may compare rollouts. The file is parsed, not run.

    The file does not show the signature of a decorated or an imported function.
    """
    path, name = split(function)
    found = defined_functions(parse_file(path)).get(name)
    if found is None or found.decorator_list:
        return "group"
    return "group" if Parameters.of_source(found.args).style in COMPARING else "rollout"


def is_coroutine(function: str) -> bool:
    """True if the file defines the function with ``async def``. The file is parsed, not run."""
    path, name = split(function)
    return isinstance(defined_functions(parse_file(path)).get(name), ast.AsyncFunctionDef)


def load_function(function: str) -> tuple[Callable[..., Any], Parameters]:
    """Run the file and return its function, with the function's parameters.

    Raises:
        ConfigError: as `check_function`, or the file fails. The message then has the line.
    """
    path, name = split(function)
    module = run_file(path)
    found = getattr(module, name, None)
    if not callable(found):
        raise missing_function(path, name, [key for key, value in vars(module).items() if callable(value)])
    try:
        parameters = Parameters.of_function(found)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "bad-reward-signature", f"{path}: {name} has no signature: {error}.", SIGNATURES.format(name=name)
        ) from error
    line = getattr(getattr(found, "__code__", None), "co_firstlineno", None)
    _check_signature(parameters, name, f"{path}, line {line}" if line else str(path))
    return found, parameters


def compute_digest(function: str) -> str:
    """SHA-256 of the file.

    Raises:
        ConfigError: the file cannot be read.
    """
    return hashlib.sha256(read_file(split(function)[0])).hexdigest()


def split(function: str) -> tuple[Path, str]:
    """Split ``FILE.py:FUNCTION`` into the path and the name."""
    file, name = split_function(function)
    return Path(file).expanduser(), name


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
                    f"Install it, or add its directory to PYTHONPATH. The directory of {path.name} is not searched.",
                )
