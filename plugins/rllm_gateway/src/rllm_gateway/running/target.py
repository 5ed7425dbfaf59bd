"""Check an agent, ``file.py:function`` or ``module:function``, without running it, and read its source."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rllm.builtin.tasks.function_file import (
    Definition,
    defined_functions,
    may_be_bound,
    missing_function,
    parse_file,
    split_function,
    unnamed_function,
)
from rllm.builtin.tasks.signatures import Parameters
from rllm_core.errors import ConfigError

KEY = "rllm.workflow.workflow_args.agent"
EXAMPLE = "Set the agent to FILE.py:FUNCTION, such as my_agent.py:solve, or to MODULE:FUNCTION."


@dataclass(frozen=True)
class Target:
    """An agent's function."""

    module: str
    """Path of a file that ends with ``.py``, or the dotted name of a module."""
    function: str

    @property
    def is_file(self) -> bool:
        return self.module.endswith(".py")

    def __str__(self) -> str:
        return f"{self.module}:{self.function}"


def target_of(agent: str) -> Target:
    """Split an agent into its file or module and its function.

    Raises:
        ConfigError: the file, the module or the function is missing.
    """
    module, function = split_function(agent)
    if not module:
        raise ConfigError("bad-function-name", f"{KEY} is {agent!r}.", EXAMPLE)
    if not function.isidentifier():
        source = _source_of(module) if module.endswith(".py") else None
        raise unnamed_function(agent, module, [] if source is None else defined_functions(parse_file(source)), "solve")
    return Target(module, function)


def check_target(agent: str) -> Target:
    """Return the target, after a check that its file or module exists and may define its function. It is not run.

    Raises:
        ConfigError: the file or module does not exist, has a syntax error, or does not have the function.
    """
    target = target_of(agent)
    source = _source_of(target.module)
    if source is None:
        return target  # A module without Python source can only be checked by running it.
    tree = parse_file(source)
    known = defined_functions(tree)
    if target.function not in known and not may_be_bound(tree, target.function):
        raise missing_function(target.module, target.function, known)
    if target.function in known and not known[target.function].decorator_list:
        _check_parameters(target, known[target.function])
    return target


def described_target(target: Target) -> str:
    """Return the function with its file and line: ``solve (agent.py, line 1)``."""
    source = _source_of(target.module)
    found = None if source is None else defined_functions(parse_file(source)).get(target.function)
    return f"{target.function} ({target.module}{f', line {found.lineno}' if found else ''})"


def _check_parameters(target: Target, function: Definition) -> None:
    """Check that the function can be called with a task, and with a session if it has this parameter."""
    parameters = Parameters.of_source(function.args)
    names = [name for name in parameters.names if name != "session"]
    required = [name for name in parameters.required if name != "session"]
    if len(required) > 1 or not (names or function.args.vararg):
        raise ConfigError(
            "bad-agent-signature",
            f"{described_target(target)} has the parameters ({', '.join(parameters.names)}).",
            f"Write def {target.function}(task), or def {target.function}(task, session).",
        )


def imported_packages(target: Target) -> list[str]:
    """Return the names of modules that the target's source imports, such as ``openai`` and ``os.path``."""
    source = _source_of(target.module)
    if source is None:
        return []
    names = [name for node in ast.walk(parse_file(source)) for name in _list_imports(node)]
    return list(dict.fromkeys(names))


def source_of(target: Target) -> Path | None:
    """Return the file with the function. None for a module without Python source."""
    return _source_of(target.module)


def _list_imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
        yield node.module


def _source_of(module: str) -> Path | None:
    if module.endswith(".py"):
        path = Path(module).expanduser()
        if not path.is_file():
            raise ConfigError(
                "file-not-found",
                f"{path}, the file of the agent, does not exist.",
                f"Set {KEY} to the path of a file, relative to {Path.cwd()}.",
            )
        return path
    here, before = str(Path.cwd()), sys.path[:]
    if "" not in sys.path and here not in sys.path:
        sys.path.append(here)  # only for this search, because the agent's process has it too
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError) as error:
        raise ConfigError("module-not-found", f"There is no module {module!r}: {error}.", EXAMPLE) from error
    finally:
        sys.path[:] = before
    if spec is None:
        raise ConfigError(
            "module-not-found",
            f"There is no module {module!r}.",
            f"{EXAMPLE} rllm also searches for modules in {Path.cwd()}.",
        )
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


LARGEST = 1 << 20
"""Maximum size of a program's file, in bytes. Larger files are treated as data."""


def sources_of_function(agent: str) -> dict[str, str]:
    """Return the name and the source of the file or module of ``module:function``.

    Raises:
        ConfigError: the file or module does not exist.
    """
    target = target_of(agent)
    source = source_of(target)
    return {} if source is None else {target.module: _text(source) or ""}


def sources_of_command(command: Sequence[str]) -> dict[str, str]:
    """Return the arguments of a command that are text files, such as ``my_program.py``, with their contents."""
    return {word: text for word in command if (text := _text(Path(word).expanduser())) is not None}


def _text(path: Path) -> str | None:
    """Return the contents of a text file. None if it is not a file, is too large, or is not text."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
