"""`tasks`: a directory of tasks in Harbor's format, for agents that run in a sandbox.

A task is a directory with ``instruction.md``, ``tests/test.sh`` and optionally ``task.toml`` and ``environment/``.
The workflow `agent` runs it.

Before the run, the test scripts are searched for reward files, and for commands that an agent could abuse. Both are
guesses from the text of the scripts.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from rllm_core.contracts.environment import Environment, Outcome, Split
from rllm_core.contracts.params import Params
from rllm_core.contracts.sandbox import SandboxSetup
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError
from rllm_core.files import sha256
from rllm_core.notices import one_line, warn_once

REWARD_FILES = ("reward.json", "reward.txt")
"""Files of rewards in Harbor's format, in the order in which Harbor reads them."""
LARGEST_SCRIPT = 1 << 20
UNTRUSTED = "untrusted"
PARTS = re.compile(r"&&|\|\||\$\(|[;&|()`]")
HEREDOC = re.compile(r"<<-?\s*['\"\\]?(\w+)")
BEFORE_COMMANDS = re.compile(
    r"\w+=.*|\d+[smh]?|-\S*|[!{]|if|then|elif|else|while|until|do|env|exec|nohup|setsid|stdbuf|time|timeout|nice|sudo|xargs"
)
INTERPRETER = re.compile(r"(python|pypy)[\d.]*|bash|sh|source|\.|node|deno|bun|ruby|perl|php|lua|Rscript|java")
PROJECT_PROGRAM = re.compile(
    r"ant|bundle|cargo|cmake|composer|coverage|dotnet|flake8|git|go|gradle|jest|make|mocha|mvn|mypy|ninja|nox|npm|npx|"
    r"phpunit|pnpm|pylint|rake|rspec|swift|tox|vitest|yarn|zig|cc|gcc|g\+\+|clang(\+\+)?|rustc|javac|ghc"
)
"""Programs that run commands of files in the current directory, and compilers, which include files that these name."""
UNPACKER = re.compile(r"tar|bsdtar|unzip|7z|cpio")
"""Programs that make links that the agent's archives contain, for example to expected results."""
OUTPUT = r"\$\(\s*(<|(cat|head|tail|sed|awk|cut|tr|jq|untrusted)\b)"
OUTPUT_IN_VARIABLE = re.compile(rf"\b(?P<name>\w+)=[\"']?{OUTPUT}|\bread\s+(-\w+\s+)*(?P<read>\w+)")
ARITHMETIC = re.compile(r"\[\[(.*?\s-(?:eq|ne|lt|le|gt|ge)\s.*?)\]\]|\(\((.*?)\)\)")
"""Arithmetic of bash, which runs commands in text such as ``a[$(command)]``."""
SYSTEM = ("/usr/", "/bin/", "/opt/", "$")
"""Starts of paths that an agent cannot write in `bwrap`, and of variables, whose values are unknown."""
IN_TESTS = re.compile(r"(\$SANDBOX_ROOT|\$\{SANDBOX_ROOT\})?/tests(/|$)")
PYTHON = re.compile(
    r"\bsubprocess\.\w|\bos\.(system|popen|exec|spawn)|\brunpy\.|\bimportlib\.(import_module|util)|\b(pickle|torch)\.load|(?<![.\w])(eval|exec)\(|\bsys\.path\b|\bPYTHONPATH="
)
"""Code of a test with which it runs or imports files of the agent."""


@dataclass(frozen=True)
class Unprotected:
    """A line of a test that seems to run a file of the agent among the tests."""

    place: str
    """File and line number."""
    text: str


def find_reward_files(tests: Path) -> tuple[str, ...]:
    """Return the reward files that the scripts mention. If none does, return all, because their programs write one."""
    found = {name for _, text in _scripts(tests) for name in REWARD_FILES if name in text}
    return tuple(name for name in REWARD_FILES if name in found) or REWARD_FILES


def find_unprotected(tests: Path) -> Unprotected | None:
    """Return the first line that seems to run a file of the agent without the command ``untrusted``."""
    names = {path.name for path in tests.rglob("*")}
    for path, text in _scripts(tests):
        lines: Iterator[tuple[int, str]] = iter(())
        if path.suffix == ".sh":
            variables = {match["name"] or match["read"] for match in OUTPUT_IN_VARIABLE.finditer(text)}
            lines = (
                (number, line)
                for number, line in _commands(text)
                if _runs_agent(line, names) or _computes(line, variables)
            )
        elif path.suffix == ".py" and UNTRUSTED not in text:
            lines = ((number, line) for number, line in enumerate(text.splitlines(), 1) if PYTHON.search(line))
        for number, line in lines:
            return Unprotected(f"tests/{path.relative_to(tests)}:{number}", line.strip())
    return None


def _scripts(tests: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(tests.rglob("*")):
        if path.is_file() and path.stat().st_size <= LARGEST_SCRIPT:
            yield path, path.read_text(encoding="utf-8", errors="replace")


def _commands(text: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a shell script. Stop at a command that enters the tests' directory."""
    end = None
    for number, line in enumerate(text.splitlines(), 1):
        if end is not None:
            end = None if line.strip() == end else end
            continue
        if not line.lstrip().startswith("#"):
            yield number, line
        if re.match(rf"\s*cd\s+[\"']?{IN_TESTS.pattern}", line):
            return
        heredoc = HEREDOC.search(line)
        end = None if heredoc is None else heredoc[1]


def _runs_agent(line: str, names: set[str]) -> bool:
    """Return True if a command of the line runs a file that is not in the tests' `names`."""
    return any(_is_unprotected(words, names) for words in map(_words, PARTS.split(line)) if words)


def _computes(line: str, variables: set[str]) -> bool:
    """Return True if bash computes a number from an output, which may be text of the agent, or from its variable."""
    computed = " ".join("".join(match.groups("")) for match in ARITHMETIC.finditer(line))
    return re.search(OUTPUT, computed) is not None or not variables.isdisjoint(re.findall(r"\w+", computed))


def _words(command: str) -> list[str]:
    """Return the program and the arguments of a simple command, without assignments and keywords before it."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        words = re.sub(r"['\"]", "", command).split()  # It is a part of a quoted command.
    while words and BEFORE_COMMANDS.fullmatch(words[0]) and not words[0].startswith("PYTHONPATH="):
        words = words[1:]
    return words


def _is_unprotected(words: list[str], names: set[str]) -> bool:
    program, *arguments = [words[0].removeprefix("/usr").removeprefix("/bin/"), *words[1:]]
    if program == UNTRUSTED or _is_theirs(program, names):
        return False
    if program.startswith("PYTHONPATH=") or PROJECT_PROGRAM.fullmatch(program) or "/" in program:
        return True
    if UNPACKER.fullmatch(program):
        return not any(map(IN_TESTS.match, arguments))
    if INTERPRETER.fullmatch(program):
        if program in ("bash", "sh") and arguments[:1] == ["-c"]:
            return _runs_agent(" ".join(arguments[1:]), names)
        if program not in ("bash", "sh") and arguments[:1] in (["-c"], ["-e"]):
            return PYTHON.search(arguments[-1]) is not None
        if arguments[:1] == ["-m"]:
            return arguments[1:2] in (["pytest"], ["unittest"]) and not any(
                _is_theirs(each, names) for each in arguments[2:]
            )
        file = next((each for each in arguments if not each.startswith(("-", "<", ">"))), None)
        return file is not None and not _is_theirs(file, names)
    return program == "pytest" and not any(_is_theirs(each, names) for each in arguments)


def _is_theirs(word: str, names: set[str]) -> bool:
    """Return True for a file of the tests, also if it was copied, and for a file of the system."""
    return IN_TESTS.match(word) is not None or word.startswith(SYSTEM) or Path(word).name in names


class TaskDirectoriesParams(Params):
    """Options of ``tasks``."""

    directory: str = Field(min_length=1)
    """Directory with one task, or with one subdirectory per task, to train on."""
    val_directory: str | None = Field(None, min_length=1)
    """The same for tasks to validate on."""


TASK_DIRECTORY, INSTRUCTION = "task_directory", "instruction"
"""Keys of a task's data: its `TaskFacts`, and the text for the agent."""
WITHOUT_EFFECT = {"version", "schema_version", "metadata"}
"""Keys of ``task.toml`` that only describe the task."""
MIB = 1 << 20
HASH_DIGITS = 16
LONGEST_LINE = 80


class _Table(BaseModel, extra="allow"):
    """A table of ``task.toml``. Keys that this program does not use are ignored, with a notice."""

    def ignored(self) -> set[str]:
        """Return the keys that are ignored, with the keys of inner tables."""
        inner = [(name, getattr(self, name)) for name in type(self).model_fields]
        below = {f"{name}.{key}" for name, table in inner if isinstance(table, _Table) for key in table.ignored()}
        return {*(self.model_extra or {}), *below}


class _Part(_Table):
    timeout_sec: float = Field(600.0, gt=0)
    env: dict[str, str] = Field(default_factory=dict)


class _Machine(_Table):
    memory_mb: int = Field(SandboxSetup.memory // MIB, gt=0)
    storage_mb: int = Field(SandboxSetup.disk // MIB, gt=0)
    processes: int = Field(SandboxSetup.processes, gt=0)


class _TaskFile(_Table):
    agent: _Part = Field(default_factory=_Part)
    verifier: _Part = Field(default_factory=_Part)
    environment: _Machine = Field(default_factory=_Machine)


class TaskFacts(BaseModel):
    """The facts of a task's directory that the agent does not receive."""

    path: str
    """Absolute path."""
    agent_seconds: float
    test_seconds: float
    test_environment: dict[str, str]
    """Environment variables of the tests."""
    memory_mb: int
    storage_mb: int
    processes: int
    reward_files: list[str] = [*REWARD_FILES]
    """Files that the tests may write. The first that exists contains the reward."""

    @property
    def setup(self) -> SandboxSetup:
        """Limits of the task's sandbox."""
        return SandboxSetup(memory=self.memory_mb * MIB, disk=self.storage_mb * MIB, processes=self.processes)


@dataclass(frozen=True, kw_only=True)
class DirectoryTask(Task):
    """A task of a directory. It is the same task after the directory moves."""

    def content(self) -> dict[str, Any]:
        """Return the task's data without its path. `list_files` shows changed files."""
        facts = {key: value for key, value in self.data[TASK_DIRECTORY].items() if key != "path"}
        return {**self.data, TASK_DIRECTORY: facts}


def list_files(params: TaskDirectoriesParams) -> dict[str, str]:
    """Return the names of tasks, each with its files and hashes of these, one per line.

    Raises:
        ConfigError: a directory contains no tasks.
    """
    splits = (("", params.directory), ("val/", params.val_directory))
    return {
        f"{split}{path.name}": "\n".join(_file_lines(path))
        for split, directory in splits
        if directory is not None
        for path in _task_paths(Path(directory).expanduser())
    }


def _file_lines(task: Path) -> Iterator[str]:
    for file in sorted(task.rglob("*")):
        name = file.relative_to(task)
        if file.is_symlink():
            yield f"{name} -> {file.readlink()}"
        elif file.is_file():
            yield f"{name} {sha256(file)[:HASH_DIGITS]}"


def without_facts(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task's data without its `TaskFacts`, which may contain keys of APIs. Only tests receive them."""
    return {key: value for key, value in task.items() if key != TASK_DIRECTORY}


class TaskDirectories(Environment):
    """Directories of tasks. The workflow `agent` reads their facts, and gives the rewards of their tests."""

    def __init__(self, params: TaskDirectoriesParams) -> None: ...

    @classmethod
    def tasks(cls, split: Split, params: TaskDirectoriesParams) -> Sequence[Task]:
        """Return the tasks of a directory, sorted by name.

        Raises:
            ConfigError: the directory contains no tasks, or a task has a mistake.
        """
        directory = params.directory if split == "train" else params.val_directory
        if directory is None:
            return []
        ignored: set[str] = set()
        paths = _task_paths(Path(directory).expanduser())
        tasks = [_read_task(path, ignored) for path in paths]
        _warn_of_unprotected(paths)
        if ignored:
            warn_once(
                f"{directory}: rllm ignores {', '.join(sorted(ignored))} of its tasks. The results of commands in a "
                "Dockerfile must be on this machine or in environment/"
            )
        return tasks

    def reset(self, task: Mapping[str, Any]) -> str:
        instruction: str = task[INSTRUCTION]
        return instruction

    def step(self, action: Any) -> Outcome:
        return Outcome(done=True)


def _task_paths(directory: Path) -> list[Path]:
    """Return `directory` if it is a task, or else the tasks in it."""
    if (directory / "instruction.md").is_file():
        return [directory]
    found = sorted(path.parent for path in directory.glob("*/instruction.md"))
    if not found:
        raise ConfigError(
            "no-tasks",
            f"{directory} contains no task: no {directory}/TASK/instruction.md exists.",
            "Write `rllm train tasks:DIRECTORY` with the directory that contains your tasks.",
        )
    return found


def _warn_of_unprotected(tasks: Sequence[Path]) -> None:
    """Print a warning for the first task whose tests seem to run files of the agent, and the number of these tasks."""
    found = [(path, line) for path in tasks if (line := find_unprotected(path / "tests")) is not None]
    if not found:
        return
    path, line = found[0]
    others = f" {len(found)} tasks have such lines." if len(found) > 1 else ""
    warn_once(
        f"{line.place} of task {path.name} seems to run code of the agent, which can then forge the reward: "
        f"`{one_line(line.text, LONGEST_LINE)}`. Write `untrusted COMMAND` instead of `COMMAND`, and `[ $n -eq 1 ]` "
        f"instead of `[[ $n -eq 1 ]]`.{others}"
    )


def _read_task(path: Path, ignored: set[str]) -> Task:
    """Read a task, and add the parts of its directory that are not used to `ignored`."""
    if not (path / "tests" / "test.sh").is_file():
        raise ConfigError(
            "bad-task-directory",
            f"Task {path} has no tests/test.sh.",
            f"Write {path}/tests/test.sh, which writes the reward to /logs/verifier/reward.txt.",
        )
    file = path / "task.toml"
    try:
        read = _TaskFile.model_validate(tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {})
        file = path / "instruction.md"
        instruction = file.read_text(encoding="utf-8")
    except (ValidationError, tomllib.TOMLDecodeError, OSError, UnicodeDecodeError) as error:
        raise ConfigError("bad-task-directory", f"Task {path} cannot be read: {error}", f"Correct {file}.") from error
    ignored |= read.ignored() - WITHOUT_EFFECT
    if "RUN " in _dockerfile(path):
        ignored.add("environment/Dockerfile")
    facts = TaskFacts(
        path=str(path.absolute()),
        agent_seconds=read.agent.timeout_sec,
        test_seconds=read.verifier.timeout_sec,
        test_environment=read.verifier.env,
        reward_files=[*find_reward_files(path / "tests")],
        **read.environment.model_dump(include=set(_Machine.model_fields)),
    )
    return DirectoryTask(id=path.name, data={INSTRUCTION: instruction, TASK_DIRECTORY: facts.model_dump()})


def _dockerfile(path: Path) -> str:
    file = path / "environment" / "Dockerfile"
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
