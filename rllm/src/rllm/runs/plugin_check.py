"""The plugins of a run: digests of their packages, and the differences to the plugins that are installed now.

A digest covers the code of a package. It is the same on every machine with the same wheel, for pip and for uv. The
package of a directory that is installed with ``-e`` has a digest of its current source files.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rllm_core.contracts.chosen import Registered
from rllm_core.errors import format_problem
from rllm_core.files import sha256
from rllm_core.plugins.discovery import CORE, IN_PROCESS, normalize, read_index
from rllm_core.plugins.registry import Registry, describe_failure
from rllm_core.plugins.specs import KINDS
from rllm_record.run_files import PLUGINS

SHOWN_DIGITS = 12
SHOWN = 3
"""Maximum number of files and plugins in a line."""
MORE = "`rllm plugins doctor` shows more."
INSTALLERS_FILES = frozenset({"INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_build.json", "uv_cache.json"})
"""Files of a package's metadata that differ between installers."""
Problem = Literal["changed", "wrong-version", "missing", "broken", "doubled", "modified"]


class UsedPackage(NamedTuple):
    """A package whose plugins a run uses."""

    distribution: str
    version: str
    digest: str
    """Empty if the run has stored none."""
    plugins: tuple[tuple[str, str], ...]
    """Kind and name of each plugin."""
    source: str = ""
    """URL of the directory, archive or repository from which the package was installed. Empty for an index."""


class Difference(NamedTuple):
    """A package of a run that differs from the installed package, or cannot be used now."""

    problem: Problem
    distribution: str
    plugins: tuple[tuple[str, str], ...]
    version: str
    """The version that the run used."""
    digest: str
    installed_version: str
    """Empty if the package is not installed."""
    installed_digest: str
    reason: str
    """A description of the problem, without the package's name."""
    remedy: str

    def lines(self, label: str = "") -> str:
        """Return a line with the package, its plugins and the problem, and a line with the remedy."""
        names = ", ".join(f"{kind} {name}" for kind, name in self.plugins[:SHOWN]) + ", …" * (len(self.plugins) > SHOWN)
        problem = f"{label}{self.distribution} {self.version} ({names}) {self.problem}: {self.reason}."
        return format_problem(problem, self.remedy)


def describe_used_plugins(registered: Iterable[Registered[Any]]) -> list[dict[str, str]]:
    """Return the plugins of a run in the form that is stored."""
    return [
        {
            "kind": entry.kind,
            "name": entry.name,
            "distribution": entry.distribution,
            "version": entry.version,
            "digest": digest_package(entry.distribution),
            "source": _find_source(entry.distribution),
        }
        for entry in registered
    ]


def read_used_plugins(directory: Path) -> list[dict[str, str]]:
    """Return the stored plugins of a run. Empty if the file is missing or damaged."""
    try:
        used = json.loads((directory / PLUGINS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    names = ("kind", "name", "distribution")
    is_valid = isinstance(used, list) and all(
        isinstance(each, dict) and all(isinstance(each.get(name), str) for name in names) for each in used
    )
    return used if is_valid else []


def read_used_packages(directory: Path) -> list[UsedPackage]:
    """Return the packages of a run's plugins, without plugins that a Python program registered."""
    found: dict[str, UsedPackage] = {}
    for each in read_used_plugins(directory):
        name = str(each.get("distribution", ""))
        if name and name != IN_PROCESS:
            version, digest, source = (str(each.get(key, "")) for key in ("version", "digest", "source"))
            before = found.get(name, UsedPackage(name, version, digest, (), source))
            plugin = (str(each.get("kind", "")), str(each.get("name", "")))
            found[name] = before._replace(plugins=(*before.plugins, plugin))
    return list(found.values())


def compare_plugins(used: Sequence[UsedPackage], registry: Registry) -> Iterator[Difference]:
    """Yield the differences between a run's packages and the installed packages."""
    for package in used:
        installed = find_package(package.distribution)
        version = installed.version if installed else ""
        digest = digest_package(package.distribution)
        for problem, reason, remedy in _find_problems(package, version, digest, registry):
            names = package.distribution, package.plugins, package.version, package.digest
            yield Difference(problem, *names, version, digest, reason, remedy)


def find_unloadable_plugins(used: Sequence[UsedPackage], registry: Registry) -> Iterator[Difference]:
    """Yield the plugins of a run that are registered, but cannot be loaded. This imports their implementations."""
    for package in used:
        for kind, name in package.plugins:
            for entry in registry.all(kind) if kind in KINDS else ():
                if entry.qualified_name == f"{package.distribution}/{name}" and (reason := _find_failure(entry)):
                    digest = digest_package(package.distribution)
                    names = package.distribution, ((kind, name),), package.version, package.digest
                    yield Difference("broken", *names, entry.version, digest, reason, MORE)


def _find_failure(entry: Registered[Any]) -> str:
    try:
        entry.plugin.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001  (plugin code must not stop the comparison)
        return describe_failure(error)
    return ""


def find_modified_files(name: str) -> list[str]:
    """Return the files of an installed package whose content differs from the RECORD of its wheel."""
    installed = find_package(name)
    if installed is None:
        return []
    files = _recorded_files(installed)
    return [path for path, digest in files if not _has_digest(Path(str(installed.locate_file(path))), digest)]


@cache
def digest_package(name: str) -> str:
    """Return the digest of a package's code: ``sha256:…``. Empty if the package is not installed, or has no RECORD."""
    installed = find_package(name)
    if installed is None:
        return ""
    files = list(_source_files(installed) if _is_editable(installed) else _recorded_files(installed))
    text = "".join(f"{path}\t{digest}\n" for path, digest in sorted(files))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}" if files else ""


def find_package(name: str) -> Distribution | None:
    """Return an installed package. None if it is not installed."""
    try:
        return distribution(name)
    except (PackageNotFoundError, ValueError):
        return None


def short_digest(digest: str) -> str:
    """Return the beginning of a digest, for display."""
    return digest.removeprefix("sha256:")[:SHOWN_DIGITS] or "-"


def _find_problems(
    package: UsedPackage, version: str, digest: str, registry: Registry
) -> Iterator[tuple[Problem, str, str]]:
    """Yield problem, reason and remedy."""
    name = normalize(package.distribution)
    # `rllm plugins install` does not change the packages of this repository.
    program = "pip" if name in (CORE, *read_index()) else "rllm plugins"
    pinned = f"'{package.distribution}=={package.version}'"
    install = f"To install the run's version: {program} install {pinned}"
    if package.source:
        # A package of this name in an index may have a different author.
        install = f"Install it from {package.source}, as for the run."
    if not version:
        yield "missing", "it is not installed", install
        return
    if package.version != version:
        yield "wrong-version", f"{version} is installed", install
    elif package.digest and package.digest != digest:
        reason = f"its code was {short_digest(package.digest)} and is now {short_digest(digest)}"
        yield "changed", reason, "Install the package with the code of the run, or start a new run."
    if files := find_modified_files(package.distribution):
        some = ", ".join(files[:SHOWN]) + ", …" * (len(files) > SHOWN)
        reason = f"{len(files)} of its files differ from the installed wheel: {some}"
        from_index = f"To undo the edits: pip install --force-reinstall --no-deps {pinned}"
        yield "modified", reason, install if package.source else from_index
    for broken in registry.broken:
        if normalize(broken.distribution) == name:
            yield "broken", broken.reason, broken.remedy or MORE
            return
    for blocked in registry.discovery.blocked:
        if normalize(blocked.distribution) == name:
            yield "missing", f"it is blocked by {blocked.blocked_by}", "Allow it there, if you trust the package."
            return
    for kind, plugin in package.plugins:
        offers = [entry for entry in registry.all(kind) if entry.name == plugin] if kind in KINDS else []
        if not any(normalize(entry.distribution) == name for entry in offers):
            yield "missing", f"it has no {kind} {plugin!r} now", install
        elif others := [entry.qualified_name for entry in offers if normalize(entry.distribution) != name]:
            reason = f"{kind} {plugin!r} is also in {', '.join(others)}"
            yield "doubled", reason, f"Write {package.distribution}/{plugin} in the config."


def _recorded_files(installed: Distribution) -> Iterator[tuple[str, str]]:
    """Yield path and digest of the files of an installed wheel. Scripts are not included, because they contain the path
    of the environment."""
    for row in csv.reader((installed.read_text("RECORD") or "").splitlines()):
        if len(row) == 3 and row[1] and not row[0].startswith("..") and not _is_of_installer(row[0]):
            yield row[0], row[1]


def _is_of_installer(path: str) -> bool:
    directory, _, name = path.rpartition("/")
    return directory.endswith(".dist-info") and name in INSTALLERS_FILES


def _has_digest(file: Path, digest: str) -> bool:
    algorithm, _, expected = digest.partition("=")
    if algorithm != "sha256" or not file.is_file():
        return False
    return base64.urlsafe_b64encode(bytes.fromhex(sha256(file))).rstrip(b"=").decode() == expected


def _is_editable(installed: Distribution) -> bool:
    return bool(_read_direct_url(installed).get("dir_info", {}).get("editable"))


def _find_source(name: str) -> str:
    installed = find_package(name)
    return "" if installed is None else str(_read_direct_url(installed).get("url", ""))


def _read_direct_url(installed: Distribution) -> dict[str, Any]:
    """Return the description of a package that was not installed from an index (PEP 610). Empty for other packages."""
    try:
        described = json.loads(installed.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
    return described if isinstance(described, dict) else {}


def _source_files(installed: Distribution) -> Iterator[tuple[str, str]]:
    """Yield path and digest of the source files in the modules of a package's entry points."""
    modules = {point.module.partition(".")[0] for point in installed.entry_points if point.group.startswith("rllm.")}
    for module in sorted(modules | {normalize(installed.metadata["Name"]).replace("-", "_")}):
        spec = find_spec(module)
        if spec is None:
            continue
        for root in spec.submodule_search_locations or ():
            for file in sorted(Path(root).rglob("*.py")):
                if file.is_file():  # Editors write broken links.
                    yield f"{module}/{file.relative_to(root).as_posix()}", sha256(file)
        if not spec.submodule_search_locations and spec.origin:
            yield module, sha256(Path(spec.origin))
