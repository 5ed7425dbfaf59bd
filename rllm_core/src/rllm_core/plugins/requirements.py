"""Requirements of packages: which ones apply here, which versions they allow, and whether plugins allow this core."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from rllm_core import __version__
from rllm_core.plugins.discovery import CORE, Candidate, UnusablePluginError, normalize

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_CORE = re.compile(rf"{CORE}(\[[a-z,]*\])?")
_OF_EXTRA = re.compile(r"; extra == ['\"][\w-]+['\"]$")
_BOUND = re.compile(r"(<|>=)([0-9]+(?:\.[0-9]+)*)")


def allows(requirement: Requirement, version: str) -> bool:
    """Return True if a version meets the requirement. An invalid version meets only a requirement without a version."""
    from packaging.version import InvalidVersion, Version

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
    from packaging.requirements import InvalidRequirement, Requirement

    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # current installers do not accept such a package
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": each}) for each in ("", *extras)):
            yield requirement


def check_core_version(candidate: Candidate) -> None:
    """Raise UnusablePluginError if the plugin's package requires a different version of rllm-core."""
    for text in candidate.requires:
        if not normalize(text).startswith(CORE) or _OF_EXTRA.search(text) or is_in_bounds(text, __version__):
            continue  # parsing takes time
        for requirement in parse_requirements([text]):
            if normalize(requirement.name) == CORE and not allows(requirement, __version__):
                raise UnusablePluginError(
                    f"{candidate.distribution} {candidate.version} needs {CORE}{requirement.specifier}, and {CORE} "
                    f"{__version__} is installed",
                    f"pip install '{CORE}{requirement.specifier}'"
                    if _is_newer(requirement)
                    else f"pip install --upgrade {candidate.distribution}",
                )


def is_in_bounds(requirement: str, version: str) -> bool:
    """Return True if a requirement of the core has only bounds, such as ``rllm-core[torch]<0.2,>=0.1``, and `version`
    meets them.

    If False, `allows` decides. Its import of `packaging` takes longer than the plugins' imports.
    """
    bounds = [_BOUND.fullmatch(bound.strip()) for bound in re.sub(_CORE, "", requirement).split(",")]
    numbers = _BOUND.fullmatch(f"<{version}")
    return numbers is not None and all(
        bound is not None and (_release(numbers[2]) < _release(bound[2])) == (bound[1] == "<") for bound in bounds
    )


def _release(version: str) -> list[int]:
    """Return the numbers of a released version. 0.2 and 0.2.0 are the same version."""
    return [int(number) for number in re.sub(r"(\.0+)+$", "", version).split(".")]


def _is_newer(requirement: Requirement) -> bool:
    """Return True if the required versions of the core are newer than the installed version."""
    from packaging.version import InvalidVersion, Version

    for spec in requirement.specifier:
        try:
            lowest = Version(spec.version.removesuffix(".*"))
        except InvalidVersion:
            continue
        if spec.operator in (">", ">=", "==", "~=", "===") and lowest > Version(__version__):
            return True
    return False
