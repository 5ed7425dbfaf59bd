"""Requirements of installed packages, and the requirements that are missing or have a different version."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version


@dataclass(frozen=True, kw_only=True)
class Unmet:
    """One requirement that the installed packages do not meet."""

    requirement: str
    """The argument for ``pip install``, such as ``peft<1,>=0.18``."""
    name: str
    installed: str = ""
    """The installed version. Empty if the package is not installed."""


def missing(of: str, extras: Collection[str] = ()) -> list[Unmet]:
    """Return the requirements of a package, including its `extras`, that are not installed.

    If the package requires an extra of a second package, such as ``rllm-core[torch]``, the requirements of that extra
    are included. The list is empty if `of` itself is not installed.
    """
    found = _installed(of)
    if found is None:
        return []
    unmet: dict[str, Unmet] = {}
    for requirement in parsed(found.requires or (), extras):
        if _installed(requirement.name) is None:
            unmet[requirement.name] = _unmet(requirement)
        elif requirement.extras:
            unmet |= {each.name: each for each in missing(requirement.name, requirement.extras)}
    return list(unmet.values())


def is_installed(name: str) -> bool:
    """Return True if a package of this name is installed, in any version."""
    return _installed(name) is not None


def outside(of: str) -> list[Unmet]:
    """Return the requirements of a package that are installed in a version outside the required range.

    The requirements of an extra are checked only if all its packages are installed, because the metadata does not
    record which extras the user installed.
    """
    found = _installed(of)
    if found is None:
        return []
    unmet = []
    extras = found.metadata.get_all("Provides-Extra") or ()
    for requirement in parsed(found.requires or (), [extra for extra in extras if not missing(of, [extra])]):
        other = _installed(requirement.name)
        if other is not None and not allows(requirement, other.version):
            unmet.append(_unmet(requirement, other.version))
    return unmet


def allows(requirement: Requirement, version: str) -> bool:
    """Return True if a version meets the requirement. An invalid version meets only a requirement without a version."""
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return not requirement.specifier


def parsed(requirements: Collection[str], extras: Collection[str] = ()) -> Iterator[Requirement]:
    """Yield the requirements that apply on this machine, including the requirements of some extras. Lines that pip
    cannot parse are skipped.

    Args:
        requirements: values of ``Requires-Dist``.
        extras: names of extras.
    """
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # current installers do not accept such a package
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": each}) for each in ("", *extras)):
            yield requirement


def _unmet(requirement: Requirement, installed: str = "") -> Unmet:
    wanted = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return Unmet(
        requirement=f"{requirement.name}{wanted}{requirement.specifier}", name=requirement.name, installed=installed
    )


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None
