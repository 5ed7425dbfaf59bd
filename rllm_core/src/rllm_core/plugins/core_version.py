"""Checks if a plugin supports the installed rllm-core, and the command that fixes a mismatch."""

from __future__ import annotations

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from rllm_core.plugins.discovery import CORE, Candidate, core_version, normalize
from rllm_core.plugins.requirements import allows, parsed
from rllm_core.plugins.unusable import UnusablePluginError


def check_core_version(candidate: Candidate) -> None:
    """Raise UnusablePluginError if the plugin's package requires a different version of rllm-core."""
    for text in candidate.requires:
        if not normalize(text).startswith(CORE):  # most lines are about other packages, and parsing takes time
            continue
        for requirement in parsed([text]):
            if normalize(requirement.name) == CORE and not allows(requirement, core_version()):
                raise UnusablePluginError(
                    f"{candidate.distribution} {candidate.version} needs {CORE}{requirement.specifier}, and {CORE} "
                    f"{core_version()} is installed",
                    _upgrade_core(requirement) if _is_newer(requirement) else upgrade(candidate),
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


def _upgrade_core(requirement: Requirement) -> str:
    return f"pip install '{CORE}{requirement.specifier}'"


def upgrade(candidate: Candidate) -> str:
    """Return the command that upgrades a plugin that is older than the core."""
    return f"pip install --upgrade {candidate.distribution}"
