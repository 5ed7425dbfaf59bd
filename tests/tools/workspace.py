"""The distributions of this repository, found by their directories."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Distribution:
    """A directory with a pyproject.toml that describes a package."""

    directory: Path

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The content of pyproject.toml."""
        return tomllib.loads((self.directory / "pyproject.toml").read_text(encoding="utf-8"))

    @property
    def project(self) -> dict[str, Any]:
        return dict(self.settings["project"])

    @property
    def name(self) -> str:
        return str(self.project["name"])

    @property
    def file_name(self) -> str:
        """Prefix of the names of its built files."""
        return self.name.replace("-", "_")

    @property
    def version(self) -> str:
        if "version" in self.project:
            return str(self.project["version"])
        source = (self.directory / self.settings["tool"]["hatch"]["version"]["path"]).read_text(encoding="utf-8")
        (version,) = re.findall(r'^__version__ = "(.*)"$', source, re.MULTILINE)
        return str(version)

    @property
    def packages(self) -> tuple[Path, ...]:
        """Return the wheel's own Python packages, without other projects' namespaces."""
        return tuple(sorted(path for path in self.directory.glob("src/*") if path.name == self.file_name))

    @property
    def readme(self) -> str:
        return (self.directory / "README.md").read_text(encoding="utf-8")

    @property
    def example(self) -> tuple[list[str], list[str]]:
        """Return the first block of its page: the arguments of ``pip install``, and the lines below."""
        (block,) = re.findall(r"\n\n((?: {4}.+\n)+)", self.readme)[:1] or [""]
        first, *lines = [line.strip() for line in block.splitlines()] or [""]
        words = shlex.split(first, comments=True)
        return (words[2:] if words[:2] == ["pip", "install"] else []), lines

    @property
    def extras(self) -> dict[str, list[str]]:
        return dict(self.project.get("optional-dependencies", {}))

    def requirements(self, *extras: str) -> Iterator[Requirement]:
        """Return its requirements, with some of its extras."""
        for text in [*self.project.get("dependencies", ()), *(each for name in extras for each in self.extras[name])]:
            yield Requirement(text)


def brought_by(name: str, extras: Iterable[str] = ()) -> set[str]:
    """Return the names of all requirements of one of our packages. Other packages' requirements are not followed."""
    ours = {each.name: each for each in distributions()}
    wanted, seen = [(name, frozenset(extras))], set[tuple[str, frozenset[str]]]()
    while wanted:
        each = wanted.pop()
        if each in seen:
            continue
        seen.add(each)
        if each[0] in ours:
            asked_for = ours[each[0]].requirements(*each[1])
            wanted.extend((canonicalize_name(other.name), frozenset(other.extras)) for other in asked_for)
    return {name for name, _ in seen}


def distributions() -> tuple[Distribution, ...]:
    """Return all distributions by name."""
    files = [file for pattern in ("*", "plugins/*") for file in ROOT.glob(f"{pattern}/pyproject.toml")]
    return tuple(sorted((Distribution(file.parent) for file in files), key=lambda each: each.name))
