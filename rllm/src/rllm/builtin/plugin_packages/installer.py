"""pip or uv of the running environment: resolve, install and uninstall packages.

Packages of this repository keep their versions, because a plugin must fit the installed core. All requirements are
resolved before the first package is installed, so that a package that does not fit changes nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from rllm_core.errors import RllmError, did_you_mean
from rllm_core.plugins.discovery import CORE, normalize, read_index, read_published_packages

SHOWN = 12
"""Maximum number of printed lines of a failed installer."""
PIP_OPTIONS = ("--disable-pip-version-check", "--no-input")
CAUSE_OF_PIP = "The conflict is caused by:"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ADDED_BY_UV = re.compile(r" \+ ([^= ]+)==([^ ]+)")


class PackageChange(NamedTuple):
    """A package that is added, or gets a different version."""

    distribution: str
    """The normalized name of the package."""
    version: str
    keywords: tuple[str, ...]
    """Keywords of its metadata. Empty with uv, which does not report them."""


class Installer(NamedTuple):
    """A program that changes the running environment."""

    name: str
    command: tuple[str, ...]
    options: tuple[str, ...]
    """Options of each subcommand."""

    def resolve(self, requirements: Sequence[str], options: Sequence[str]) -> list[PackageChange]:
        """Return the packages that `install` would add or change.

        Raises:
            RllmError: the requirements do not fit each other, or the installed packages of this repository.
        """
        if self.name == "uv":
            lines = self._install(requirements, ["--dry-run", *options])
            return [
                PackageChange(normalize(match[1]), match[2], ()) for match in map(_ADDED_BY_UV.match, lines) if match
            ]
        with tempfile.TemporaryDirectory() as directory:
            report = Path(directory) / "report.json"
            self._install(requirements, ["--dry-run", "--report", str(report), *options])
            planned: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
        return [_read_change(item["metadata"]) for item in planned]

    def install(self, requirements: Sequence[str], options: Sequence[str]) -> None:
        """Install packages and their requirements.

        Raises:
            RllmError: as `resolve`, or a package cannot be built or written.
        """
        self._install(requirements, options)

    def uninstall(self, names: Sequence[str]) -> None:
        """Uninstall packages from the environment.

        Raises:
            RllmError: the environment cannot be changed.
        """
        self._run("uninstall", names, () if self.name == "uv" else ("--yes",))

    def _install(self, requirements: Sequence[str], options: Sequence[str]) -> list[str]:
        with _constraints(requirements) as file:
            return self._run("install", requirements, ["--constraint", str(file), *options])

    def _run(self, verb: str, requirements: Sequence[str], options: Sequence[str]) -> list[str]:
        """Run a subcommand, and return its printed lines."""
        words = [*self.command, verb, *self.options, *options, *requirements]
        finished = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = finished.stdout.splitlines()
        if finished.returncode == 0:
            return lines
        names, details = ", ".join(requirements), "\n".join(_find_cause(lines))
        if CORE in details:
            raise RllmError(
                "wrong-version",
                f"{self.name} cannot {verb} {names}, because the requirements do not fit.",
                "No allowed version fits. Allow earlier versions, or upgrade rllm: pip install --upgrade rllm",
                details,
            )
        known = {**read_index(), **read_published_packages()}.keys()
        guesses = [did_you_mean(name, known - {name}) for name in map(requirement_name, requirements)]
        hint = "Check the name with `rllm plugins search`, and the options --index-url and --find-links."
        hint = " ".join(filter(None, (*guesses, hint)))
        raise RllmError("install-failed", f"{self.name} cannot {verb} {names}.", hint, details)


def _find_cause(lines: Sequence[str]) -> list[str]:
    """Return the lines of pip that name the requirements in conflict, or the last lines."""
    if CAUSE_OF_PIP not in lines:
        return [line for line in lines if line.strip()][-SHOWN:]
    rest = lines[lines.index(CAUSE_OF_PIP) + 1 :]
    return [*rest[: rest.index("")]] if "" in rest else [*rest]


def find_installer() -> Installer:
    """Return the running environment's pip. If it has none, return uv.

    Raises:
        RllmError: neither is installed.
    """
    if find_spec("pip") is not None:
        return Installer("pip", (sys.executable, "-m", "pip"), PIP_OPTIONS)
    places = (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
    if program := shutil.which("uv", path=os.pathsep.join(places)):
        return Installer("uv", (program, "pip"), ("--no-progress", "--python", sys.executable))
    raise RllmError(
        "no-installer",
        f"The environment {sys.prefix} has no pip, and there is no uv on the path.",
        f"Install pip: {sys.executable} -m ensurepip",
    )


def list_versions() -> dict[str, str]:
    """Return the version of each installed package, by its normalized name."""
    found = [(each.metadata["Name"], each.version) for each in distributions()]
    return {normalize(name): version for name, version in reversed(found) if name}


def requirement_name(requirement: str) -> str:
    """Return the normalized name in a requirement: ``rllm-foo`` of ``rllm_foo[x]<2``. A path gives its first part."""
    match = _NAME.match(requirement)
    return normalize(match[0]) if match else ""


@contextmanager
def _constraints(requirements: Sequence[str]) -> Iterator[Path]:
    """Yield a file with the installed versions of this repository's packages, except requested packages."""
    requested = {requirement_name(requirement) for requirement in requirements}
    versions = list_versions()
    fixed = [name for name in (CORE, *read_index()) if name in versions and name not in requested]
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "constraints.txt"
        file.write_text("".join(f"{name}=={versions[name]}\n" for name in fixed), encoding="utf-8")
        yield file


def _read_change(metadata: Mapping[str, Any]) -> PackageChange:
    keywords = metadata.get("keywords", ())
    split = keywords.split(",") if isinstance(keywords, str) else keywords
    return PackageChange(normalize(metadata["name"]), metadata["version"], tuple(each.strip() for each in split))
