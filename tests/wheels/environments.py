"""Built distributions, and new environments without sources of this repository, as users install them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from workspace import brought_by

TORCH = "torch==2.13.0"
TORCH_WHEEL = Path(sys.prefix) / "torch"
"""Where `make` puts the wheel of torch, so that every environment links to one copy."""
_made: list[Environment] = []
"""All environments of this test process."""
_bytecode: dict[int, Path] = {}
"""Inode of a source file -> its compiled file in an environment."""
_OF_THIS_PROCESS = ("PYTHON", "VIRTUAL_ENV", "RLLM_", "TINKER_", "PYTEST_", "COVERAGE_")


def metadata_of(wheel: Path) -> Message:
    """Return the core metadata of a wheel."""
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def requirements_of(wheel: Path, extras: Collection[str] = ()) -> Iterator[Requirement]:
    """Return the requirements of a wheel, with some of its extras."""
    for text in metadata_of(wheel).get_all("Requires-Dist", []):
        requirement = Requirement(text)
        environments: list[dict[str, str]] = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(requirement.marker.evaluate(each) for each in environments):
            yield requirement


@dataclass(frozen=True)
class Environment:
    """A virtual environment made by uv."""

    directory: Path

    @classmethod
    def make(cls, directory: Path, dist: Path, requirements: Sequence[str], *options: str) -> Environment:
        """Make an environment with torch, then install `requirements` and their requirements as a user does.

        Args:
            directory: does not exist yet.
            dist: directory of the built distributions.
            requirements: arguments of ``pip install``.
            options: options of ``uv pip install``.
        """
        _uv("venv", "--python", sys.executable, str(directory))
        environment = cls(directory)
        environment.install(["--find-links", str(TORCH_WHEEL), TORCH])
        environment.install_from(dist, [*options, *requirements])
        if _made:
            _made[-1]._remember_bytecode()
        environment._link_bytecode()
        _made.append(environment)
        return environment

    def _link_bytecode(self) -> None:
        """Link compiled files of the same sources from earlier environments. This halves the time of the first import.

        uv links files from its cache, so a version of a package is the same files in every environment.
        """
        for source in self._site_packages.rglob("*.py"):
            compiled = _bytecode.get(source.stat().st_ino)
            if compiled is None:
                continue
            target = source.parent / "__pycache__" / compiled.name
            target.parent.mkdir(exist_ok=True)
            if not target.exists():  # A few packages contain compiled modules.
                target.hardlink_to(compiled)

    def _remember_bytecode(self) -> None:
        for compiled in self._site_packages.rglob("__pycache__/*.pyc"):
            source = compiled.parents[1] / f"{compiled.name.partition('.')[0]}.py"
            if source.exists():
                _bytecode.setdefault(source.stat().st_ino, compiled)

    @property
    def _site_packages(self) -> Path:
        (found,) = self.directory.glob("lib/python3.*/site-packages")
        return found

    def run(self, words: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in the directory `cwd`, without a network for models."""
        return self._run([str(self.directory / "bin" / words[0]), *words[1:]], cwd)

    def run_line(self, line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a shell line with the programs of the environment, in the directory `cwd`."""
        return self._run(["bash", "-c", line], cwd)

    def _run(self, command: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        environ = {key: value for key, value in os.environ.items() if not key.startswith(_OF_THIS_PROCESS)}
        environ |= {
            "COLUMNS": "200",
            "HF_HUB_OFFLINE": "1",
            "PATH": f"{self.directory / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }
        return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=300)

    def version_of(self, distribution: str, cwd: Path) -> str:
        code = f"import importlib.metadata; print(importlib.metadata.version({distribution!r}))"
        return self.run(["python", "-c", code], cwd).stdout.strip()

    def install_from(self, dist: Path, words: Sequence[str]) -> None:
        """Run ``uv pip install`` with the distributions that are in `dist` now."""
        # uv caches a wheel by its directory, name and version, and would install an earlier build.
        fresh = [f"--refresh-package={wheel.name.partition('-')[0]}" for wheel in sorted(dist.glob("*.whl"))]
        self.install(["--find-links", str(dist), *fresh, *words])

    def install(self, words: Sequence[str]) -> None:
        """Run ``uv pip install`` for the environment."""
        _uv("pip", "install", "--python", str(self.directory / "bin" / "python"), *words)


def lowest(dist: Path, extras: Mapping[str, Collection[str]]) -> list[str]:
    """Return the requirements of distributions as a user's own, because uv takes the lowest versions of these only.

    Args:
        dist: directory of the built distributions.
        extras: distribution -> its extras.
    """
    found: set[str] = set()
    for name, wanted in extras.items():
        (wheel,) = dist.glob(f"{name.replace('-', '_')}-*.whl")
        for requirement in requirements_of(wheel, wanted):
            if requirement.name not in extras and requirement.name != "torch":
                requirement.marker = None
                found.add(str(requirement))
    return sorted(found)


def packages(line: Iterable[str]) -> str:
    """Return the names of all packages of an install line. Lines with equal names make equal environments."""
    wanted = map(Requirement, line)
    found = set().union(*(brought_by(each.name, each.extras) for each in wanted))
    program = brought_by("rllm")
    return " ".join(["rllm", *sorted(found - program)] if "rllm" in found else sorted(found))


def same_process(line: Iterable[str]) -> pytest.MarkDecorator:
    """Mark a test that uses the environment of an install line: one test process makes it and runs all such tests."""
    return pytest.mark.xdist_group(packages(line))


def _uv(*words: str) -> None:
    done = subprocess.run(["uv", "--quiet", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"uv {' '.join(words)}\n{done.stderr}"
