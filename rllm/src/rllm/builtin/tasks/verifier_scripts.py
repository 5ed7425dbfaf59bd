"""Read the test scripts of a task's directory before the run: its reward files, and commands that an agent could abuse.

Both are guesses from the text of the scripts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
