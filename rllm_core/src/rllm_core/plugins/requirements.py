"""Requirements of installed packages that are missing or have a different version, and the command to fix them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from rllm_core.plugins.discovery import CORE, Candidate, UnusablePluginError, core_version, normalize


@dataclass(frozen=True, kw_only=True)
class MissingRequirement:
    """One requirement that the installed packages do not meet."""

    requirement: str
    """The argument for ``pip install``, such as ``peft<1,>=0.18``."""
    name: str
    installed: str = ""
    """The installed version. Empty if the package is not installed."""


def missing(of: str, extras: Collection[str] = ()) -> list[MissingRequirement]:
    """Return the requirements of a package, including its `extras`, that are not installed.

    If the package requires an extra of a second package, such as ``rllm-core[torch]``, the requirements of that extra
    are included. The list is empty if `of` itself is not installed.
    """
    found = find_installed(of)
    if found is None:
        return []
    unmet: dict[str, MissingRequirement] = {}
    for requirement in parse_requirements(found.requires or (), extras):
        if find_installed(requirement.name) is None:
            unmet[requirement.name] = missing_requirement(requirement)
        elif requirement.extras:
            unmet |= {each.name: each for each in missing(requirement.name, requirement.extras)}
    return list(unmet.values())


def allows(requirement: Requirement, version: str) -> bool:
    """Return True if a version meets the requirement. An invalid version meets only a requirement without a version."""
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return not requirement.specifier


def parse_requirements(requirements: Collection[str], extras: Collection[str] = ()) -> Iterator[Requirement]:
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


def missing_requirement(requirement: Requirement, installed: str = "") -> MissingRequirement:
    """Return a requirement as a `MissingRequirement`. `installed` is the version of its package."""
    wanted = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return MissingRequirement(
        requirement=f"{requirement.name}{wanted}{requirement.specifier}", name=requirement.name, installed=installed
    )


def find_installed(name: str) -> Distribution | None:
    """Return an installed package in any version. None if it is not installed."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def check_core_version(candidate: Candidate) -> None:
    """Raise UnusablePluginError if the plugin's package requires a different version of rllm-core."""
    for text in candidate.requires:
        if not normalize(text).startswith(CORE):  # most lines are about other packages, and parsing takes time
            continue
        for requirement in parse_requirements([text]):
            if normalize(requirement.name) == CORE and not allows(requirement, core_version()):
                raise UnusablePluginError(
                    f"{candidate.distribution} {candidate.version} needs {CORE}{requirement.specifier}, and {CORE} "
                    f"{core_version()} is installed",
                    f"pip install '{CORE}{requirement.specifier}'"
                    if _is_newer(requirement)
                    else f"pip install --upgrade {candidate.distribution}",
                )


def _is_newer(requirement: Requirement) -> bool:
    """Return True if the required versions of the core are newer than the installed version."""
    for spec in requirement.specifier:
        try:
            lowest = Version(spec.version.removesuffix(".*"))
        except InvalidVersion:
            continue
        if spec.operator in (">", ">=", "==", "~=", "===") and lowest > Version(core_version()):
            return True
    return False
