"""Finds the tests that a change can reach: ``python tests/tools/reached_tests.py BASE`` is part of ``make check``.

A test file depends on the modules that it or its conftests import, and on modules and plugins whose names are in its
strings. What these modules import follows. A data file belongs to the modules whose strings have its name or directory.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import PurePosixPath

from workspace import ROOT, brought_by, distributions

EVERYTHING = ("conftest.py", "constraints.txt", "pyproject.toml", "Makefile")
"""Files whose change reaches all tests."""
OWN_ENVIRONMENTS = ("real", "wheels", "clients")
"""Directories whose tests have their own targets."""
WHOLE_RUNS = "tests/"
"""Directory of the tests that run the program with the plugins of `pip install rllm`."""
COMMON = {"src", "tests", "plugins"}
"""Names of directories that too many files contain."""
PACKAGE_INDEX = ROOT / "rllm/src/rllm/package_index.json"
_OPTION = re.compile(r"\S+|rllm .*")
"""An option of a command, or a command."""
_BETWEEN = re.compile(r"[=:@ ]")


class Sources:
    """The files of the repository and their dependencies."""

    def __init__(self, changed: Iterable[str] = ()) -> None:
        """Read all files. Modules of `changed` files also count if they do not exist anymore."""
        listed = _git("ls-files", "--cached", "--others", "--exclude-standard")
        self.files = {file for file in listed if (ROOT / file).is_file()}
        self.python = {file for file in self.files if file.endswith(".py")}
        python = {*self.python, *(file for file in changed if file.endswith(".py"))}
        self.modules = {_module(file): file for file in sorted(python)}
        self.strings: dict[str, set[str]] = {}
        self._needs: dict[str, set[str]] = {}
        for file in sorted(self.python):
            self._read(file)
        self._add_plugins()

    def _read(self, file: str) -> None:
        """Store the strings of a file, and the files that it imports or has as a conftest."""
        strings: set[str] = set()
        needs: set[str] = set()
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                strings.add(node.value)
                # Helpers of tests start commands by their modules, which matters only to whole runs.
                if "." in node.value and not file.startswith("tests/tools/"):
                    needs |= self._find(node.value.partition(":")[0], exactly=True)
            elif isinstance(node, ast.Import):
                needs.update(*(self._find(alias.name) for alias in node.names))
            elif isinstance(node, ast.ImportFrom):
                above = _module(file).split(".")[: -node.level] if not file.endswith("__init__.py") else [_module(file)]
                package = ".".join([*(above if node.level else []), *filter(None, [node.module])])
                needs.update(*(self._find_name(package, alias.name) for alias in node.names))
        if is_test(file):
            needs |= {f"{parent}/conftest.py" for parent in PurePosixPath(file).parents} & self.python
        self.strings[file], self._needs[file] = strings, needs - {file}

    def _find(self, module: str, *, exactly: bool = False) -> set[str]:
        """Return the files of a module and its parent packages. With `exactly`, the module itself must exist."""
        if exactly and module not in self.modules:
            return set()
        parts = module.split(".")
        names = (".".join(parts[: end + 1]) for end in range(len(parts)))
        return {self.modules[name] for name in names if name in self.modules}

    def _find_name(self, package: str, name: str) -> set[str]:
        """Return the files of a name that is imported from a module or package."""
        return self._find(f"{package}.{name}") | self._find(self.stubs.get(f"{package}.{name}", package))

    def _find_all(self, entries: Iterable[str]) -> set[str]:
        """Return the files of entry points that are modules of this repository."""
        return set().union(*(self._find(entry.partition(":")[0], exactly=True) for entry in entries))

    @cached_property
    def stubs(self) -> dict[str, str]:
        """Name with its package -> the module that has it, for packages that load their names on first use."""
        found = {}
        for stub in sorted(file for file in self.files if file.endswith("__init__.pyi")):
            package = _module(stub)
            for node in ast.parse((ROOT / stub).read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ImportFrom):
                    module = f"{package}.{node.module}" if node.level else str(node.module)
                    found |= {f"{package}.{alias.name}": module for alias in node.names}
        return found

    def _add_plugins(self) -> None:
        """Add what tests need by the names of plugins, and whole runs by the requirements of the program."""
        offers = json.loads(PACKAGE_INDEX.read_text(encoding="utf-8"))
        names: dict[str, set[str]] = defaultdict(set)
        specs: dict[str, set[str]] = {}
        for each in distributions():
            points = each.project.get("entry-points", {})
            specs[each.name] = self._find_all(points.get("rllm.plugins", {}).values())
            for name, entry in points.get("rllm.commands", {}).items():
                names[name] |= self._find_all([entry])
            for kind in offers.get(each.name, {}).get("offers", {}).values():
                for name in kind:
                    names[name] |= specs[each.name]
        program = set().union(*(specs[name] for name in brought_by("rllm") if name in specs))
        for file in filter(is_test, self.python):
            words = {word for text in self.strings[file] if _OPTION.fullmatch(text) for word in _BETWEEN.split(text)}
            self._needs[file].update(*(names[word] for word in words & names.keys()))
            if file.startswith(WHOLE_RUNS):
                self._needs[file] |= program

    def readers(self, data: str) -> set[str]:
        """Return the Python files that read a data file, or run a Python file, by their strings."""
        path = PurePosixPath(data)
        if path.suffix == ".py":
            return {file for file, strings in self.strings.items() if strings & {path.name, data}}
        places = {name for parent in path.parents for name in (str(parent), parent.name)} - COMMON - {"", "."}
        names = {path.name, f"*{path.suffix}", data, *places, *(f"{place}/" for place in places)}
        readers = {file for file, strings in self.strings.items() if strings & names}
        return readers or {
            file for file in self.python if PurePosixPath(file).parent in path.parents and "/src/" in file
        }

    def reached(self, changed: Iterable[str]) -> list[str]:
        """Return the test files that changed files can reach, with the nearest first.

        Tests of a changed file's own package come before others.
        """
        changed = set(changed)
        users: dict[str, set[str]] = defaultdict(set)
        for file, needs in self._needs.items():
            for needed in needs:
                users[needed].add(file)
        everything = any(file in EVERYTHING or file.endswith("/pyproject.toml") for file in changed)
        modules = {*self.modules.values()}
        distance = dict.fromkeys(self.python if everything else changed & modules, 0)
        # A Python file that no other imports may be run by its path.
        for file in changed - {file for file in modules if users[file] or is_test(file)}:
            distance |= dict.fromkeys(self.readers(file) - distance.keys(), 1)
        wave = list(distance)
        while wave:
            found = {user: distance[file] + 1 for file in wave for user in users[file] if user not in distance}
            distance |= found
            wave = list(found)
        homes = {file.partition("/src/")[0] + "/" for file in changed if "/src/" in file}
        tests = [file for file in distance if is_test(file)]
        return sorted(tests, key=lambda file: (not any(map(file.startswith, homes)), distance[file], file))


def is_test(file: str) -> bool:
    """Return True for a file of tests that runs in the usual environment."""
    path = PurePosixPath(file)
    return path.match("test_*.py") and not {*path.parts} & {*OWN_ENVIRONMENTS, "examples"}


def _module(file: str) -> str:
    """Return the name by which a file is imported."""
    inside = file.partition("/src/")[2] or re.sub(r"^(tests/tools|docs/generate|docs/site|benchmarks)/", "", file)
    return re.sub(r"(/__init__)?\.pyi?$", "", inside).replace("/", ".")


def changed_since(base: str) -> Iterator[str]:
    """Return the files that differ from a commit, or are new."""
    yield from _git("diff", "--name-only", "--no-renames", base)
    yield from _git("ls-files", "--others", "--exclude-standard")


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else sys.exit(done.returncode)


if __name__ == "__main__":
    changed = {*changed_since(sys.argv[1])}
    sys.stdout.write("\n".join(Sources(changed).reached(changed)))
