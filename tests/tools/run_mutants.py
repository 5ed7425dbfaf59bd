"""Finds the tests that notice small faults of the sources: ``python tests/tools/run_mutants.py [NAME...]``.

It clones the current commit into a temporary directory. There it applies one fault of `mutants.toml` at a time, and
runs the tests that the mutated file reaches, nearest first, until a test fails. A test that also fails without the
fault does not count. At the end, a table lists for each fault the CPU time and the test that found it, or SURVIVED.

With ``--json FILE``, results are stored as they come. A second call continues after the last stored result.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from reached_tests import Sources
from workspace import ROOT

from rllm_core.files import write_atomically

MUTANTS = Path(__file__).with_name("mutants.toml")
TIER = "not long and not nightly and not gpu"
PYTEST = ("-x", "-q", "--tb=no", "-rfE", "--timeout=300", "-p", "no:cacheprovider")
FIRST_FILES = 4
"""Number of test files in the first test process. Each further process gets twice as many, because it starts slowly."""
SURVIVED, LIMIT = "SURVIVED", "SURVIVED until the limit of CPU time"
LARGEST_SCRIPT = 10_000
"""Bytes of a file that may contain the path of its environment."""
IN_CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], env={})"
"""Program that runs its argument in a child process without environment variables. Some tests start such processes."""


class Mutant(NamedTuple):
    """A fault: one line that replaces another."""

    name: str
    file: str
    old: str
    """The line without its indentation. The file contains it once."""
    new: str
    hurts: str
    """The users who would be harmed."""


class Result(NamedTuple):
    """The outcome of a fault."""

    new: str
    """The line of the fault. A stored result of a different line is not used."""
    found_by: str
    """Id of the first failing test. `SURVIVED` or `LIMIT` if there is none."""
    seconds: float
    """CPU time of the test processes."""

    def describe(self, name: str) -> str:
        """Return a row of the table."""
        return f"{name:<38} {self.seconds:7.1f} s  {self.found_by}\n"


class Clone:
    """A clone of the repository's current commit, with an environment that imports the clone's sources."""

    def __init__(self, directory: Path) -> None:
        """Clone into a new directory. Installed packages are links to those of the original."""
        self.directory, self.python = directory, str(directory / ".venv/bin/python")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(directory)], check=True)
        original = ROOT / ".venv"
        (site,) = original.glob("lib/python*/site-packages")
        for path in [*site.iterdir(), *original.glob("bin/*"), *original.iterdir()]:
            copy = directory / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file() and not path.is_symlink() and path.stat().st_size < LARGEST_SCRIPT:
                # Editable installs and commands. A path in PYTHONPATH would not reach all child processes of tests.
                copy.write_bytes(path.read_bytes().replace(bytes(original.parent), bytes(directory)))
                shutil.copymode(path, copy)
            elif not copy.exists():
                copy.symlink_to(path.readlink() if path.is_symlink() else path)

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[Path]:
        """Apply a fault, and yield its file. Raise ValueError if the line does not occur exactly once."""
        path = self.directory / mutant.file
        text = path.read_text(encoding="utf-8")
        faulty, count = re.subn(rf"(?m)^([ \t]*){re.escape(mutant.old)}$", lambda line: line[1] + mutant.new, text)
        if count != 1:
            raise ValueError(f"{mutant.name}: {mutant.file} contains the line {count} times: {mutant.old}")
        try:
            write_module(path, faulty)
            yield path
        finally:
            write_module(path, text)

    def check_import(self, mutant: Mutant) -> None:
        """Raise ValueError if a child process does not import the faulty module."""
        module = mutant.file.partition("/src/")[2].removesuffix(".py").replace("/", ".")
        command = [self.python, "-c", IN_CHILD, f"import {module} as module; print(module.__file__)"]
        with self.mutated(mutant) as path:
            child = subprocess.run(command, capture_output=True, text=True)
        if child.stdout.strip() != str(path):
            raise ValueError(f"{mutant.name}: {module} is {child.stdout.strip()}\n{child.stderr}")

    def run(self, arguments: Sequence[str], seconds: float) -> tuple[int, str | None]:
        """Run tests until one fails. Return pytest's exit code, and the id of the failed test or test file.

        The exit code is negative if the test process used more than `seconds` of CPU time.
        """
        limit = max(1, int(seconds))
        finished = subprocess.run(
            [self.python, "-m", "pytest", *PYTEST, *arguments], cwd=self.directory, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5)),
        )  # fmt: skip
        failed = re.search(r"(?m)^(?:FAILED|ERROR) (.+?)(?: - .*)?$", finished.stdout)
        if failed is None and finished.returncode in (1, 2, 3, 4):
            raise ValueError(finished.stdout + finished.stderr)
        if finished.returncode < 0 and finished.returncode != -signal.SIGXCPU:
            raise ValueError(f"The tests ended by signal {-finished.returncode}: {' '.join(arguments)}")
        return finished.returncode, failed and failed[1]


def write_module(path: Path, text: str) -> None:
    """Write a module and remove its bytecode, which Python would use for a file of the same size and second."""
    path.write_text(text, encoding="utf-8")
    shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)


def cpu_seconds() -> float:
    """Return the CPU time of all child processes that have ended."""
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def split_tests(files: Sequence[str], marks: Sequence[str]) -> Iterator[list[str]]:
    """Yield pytest's arguments for groups of test files. The groups grow."""
    for expression in marks:
        start, size = 0, FIRST_FILES
        while start < len(files):
            yield ["-m", expression, *files[start : start + size]]
            start, size = start + size, 2 * size


def try_mutant(clone: Clone, mutant: Mutant, files: Sequence[str], marks: Sequence[str], limit: float) -> Result:
    """Run tests against a fault until one fails, none is left, or `limit` seconds of CPU time are used."""
    clone.check_import(mutant)
    begun = cpu_seconds()
    for arguments in split_tests(files, marks):
        failed: str | None = ""
        while failed is not None:
            with clone.mutated(mutant):
                code, failed = clone.run(arguments, limit - (cpu_seconds() - begun))
            if failed is not None and clone.run([failed], limit)[1] is None:
                return Result(mutant.new, failed, cpu_seconds() - begun)
            if code < 0 or cpu_seconds() - begun >= limit:
                return Result(mutant.new, LIMIT, cpu_seconds() - begun)
            arguments.append(f"--deselect={failed}")
    return Result(mutant.new, SURVIVED, cpu_seconds() - begun)


def main() -> None:
    """Run the command. After Ctrl-C, the table has the results so far."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="Names of faults. All if there are none.")
    parser.add_argument("--json", type=Path, help="File of the results, to continue later.")
    parser.add_argument("--marks", action="append", help=f"Tests to run; repeat it for more later. Default: {TIER!r}.")
    parser.add_argument("--cpu", type=float, default=480.0, help="Seconds of CPU time for each fault.")
    options = parser.parse_args()
    known = {each["name"]: Mutant(**each) for each in tomllib.loads(MUTANTS.read_text(encoding="utf-8"))["mutant"]}
    chosen = [known[name] for name in options.names or known]
    text = options.json.read_text(encoding="utf-8") if options.json and options.json.exists() else "{}"
    results = {name: Result(**each) for name, each in json.loads(text).items()}
    missing = [each for each in chosen if each.name not in results or results[each.name].new != each.new]
    with suppress(KeyboardInterrupt), tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        clone, sources = Clone(Path(directory).resolve() / "clone"), Sources()
        for number, mutant in enumerate(missing, 1):
            files = [file for file in sources.reached([mutant.file]) if (clone.directory / file).exists()]
            results[mutant.name] = result = try_mutant(clone, mutant, files, options.marks or [TIER], options.cpu)
            if options.json:
                text = json.dumps({name: each._asdict() for name, each in results.items()}, indent=1)
                write_atomically(options.json, text)
            sys.stderr.write(f"{number}/{len(missing)} {result.describe(mutant.name)}")
    shown = {each.name: results[each.name] for each in chosen if each.name in results}
    sys.stdout.writelines(each.describe(name) for name, each in shown.items())
    sys.stdout.write(f"{sum(each.found_by in (SURVIVED, LIMIT) for each in shown.values())} of {len(shown)} survived\n")


if __name__ == "__main__":
    main()
