"""What installed distributions ask for, and what of it is missing or of another version."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version


@dataclass(frozen=True, kw_only=True)
class Unmet:
    """One requirement that what is installed does not meet."""

    requirement: str
    """What ``pip install`` takes, such as ``peft<1,>=0.18``."""
    name: str
    installed: str = ""
    """The version there is; empty when there is none."""


def missing(of: str, extras: Collection[str] = ()) -> list[Unmet]:
    """The packages that a distribution asks for, with those of its extras, and that are not installed.

    Of an extra that another distribution is asked for with, such as ``rllm-core[torch]``, that one's packages too.
    Empty when `of` itself is not installed.
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
    """Whether there is a distribution of this name, in any version."""
    return _installed(name) is not None


def outside(of: str) -> list[Unmet]:
    """The installed packages, of another version than a distribution asks for.

    An extra counts where all of its packages are there: nothing says which extras somebody installed.
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
    """Whether a version will do; one that is no version will not."""
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return not requirement.specifier


def parsed(requirements: Collection[str], extras: Collection[str] = ()) -> Iterator[Requirement]:
    """Lines of metadata that count on this machine, with those of some extras. Lines that pip cannot read are left out.

    Args:
        requirements: values of ``Requires-Dist``.
        extras: names of extras.
    """
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # of a distribution that no installer of today accepts
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
