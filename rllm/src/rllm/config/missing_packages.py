"""Packages that a run needs and does not have, all of them in one error, and packages in untested versions."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import Requirement

from rllm.config.keys import ANY_KEY, choice_keys, plugin_keys
from rllm_core.contracts.chosen import FAMILY
from rllm_core.errors import ConfigError, PluginError
from rllm_core.plugins.discovery import find_home_package, read_index
from rllm_core.plugins.registry import Registry
from rllm_core.plugins.requirements import allows, parse_requirements
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.section import ROLE_LOSS

Value = Callable[[str], Any]
"""The value of a dotted key, None when there is none."""

_complete: set[str] = set()
"""Distributions, with extras, that have been found to lack nothing: looking again takes some milliseconds."""


@dataclass(frozen=True, kw_only=True)
class MissingRequirement:
    """One requirement that the installed packages do not meet."""

    requirement: str
    """The argument for ``pip install``, such as ``peft<1,>=0.18``."""
    name: str
    installed: str = ""
    """The installed version. Empty if the package is not installed."""


def require_packages(registry: Registry, value: Value) -> None:
    """Raise ConfigError with every missing package, and one pip command that installs them all.

    Plugin names that no package of rllm offers are ignored here. The later plugin lookup reports them.
    """
    needed: dict[str, str] = {}
    without_gpu: dict[str, None] = {}
    for kind, name in _list_choices(value):
        try:
            found = registry.get(kind, name).distribution
        except PluginError:
            home = find_home_package(kind, name.partition(FAMILY)[0].rpartition("/")[2])
            if home and find_installed(home) is None:
                extras, instead = _extras_to_install(home, value)
                needed.setdefault(_with_extras(home, extras), f"{home} for {kind} {name!r}")
                without_gpu.update({instead: None} if instead else {})
        else:
            extras = _needed_extras(found, value)
            if lacking := [each for each in _lacking(found, extras) if each not in needed]:
                package = _with_extras(found, extras)
                needed[package] = f"{', '.join(lacking)} for {package}"
    if needed:
        raise ConfigError(
            "missing-package",
            f"This run needs packages that are not installed: {'; '.join(needed.values())}.",
            f"Run: pip install {' '.join(map(shlex.quote, needed))}"
            + (f" (without a GPU {'; '.join(without_gpu)})" if without_gpu else ""),
        )


def _extras_to_install(distribution: str, value: Value) -> tuple[tuple[str, ...], str]:
    """Return a package's extras to install, and the alternative for a machine without a GPU."""
    extras, entry = _needed_extras(distribution, value), read_index().get(distribution)
    if extras or entry is None:
        return extras, ""
    return tuple(entry.on_gpus), entry.without_gpu


def _needed_extras(distribution: str, value: Value) -> tuple[str, ...]:
    """Return the extras of a package that the run needs."""
    if (entry := read_index().get(distribution)) is None:
        return ()
    return tuple(
        extra
        for extra, keys in entry.extras.items()
        if all(_without_member(value(key)) == wanted for key, wanted in keys.items())
    )


def _without_member(value: Any) -> Any:
    """Return the name without a family: ``reasoning_gym`` for ``reasoning_gym:chain_sum``."""
    return value.partition(FAMILY)[0] if isinstance(value, str) else value


def _lacking(distribution: str, extras: tuple[str, ...]) -> list[str]:
    """Return the names of an installed distribution's missing requirements."""
    package = _with_extras(distribution, extras)
    if package in _complete:
        return []
    lacking = [unmet.name for unmet in missing(distribution, extras)]
    if not lacking:
        _complete.add(package)
    return lacking


def _with_extras(distribution: str, extras: tuple[str, ...]) -> str:
    return f"{distribution}[{','.join(extras)}]" if extras else distribution


def _list_choices(value: Value) -> Iterator[tuple[str, str]]:
    """Yield kind and name of the plugins that keys choose."""
    for path, kind in plugin_keys(RunConfig).items():
        chosen = value(".".join(path))
        by_role = (*path, ANY_KEY) in choice_keys(RunConfig)
        choices: Iterable[Any]
        if by_role and isinstance(chosen, Mapping):
            choices = chosen.values()
        else:
            choices = chosen if isinstance(chosen, list) else [chosen]
        for choice in choices:
            yield from _list_names(kind, choice)
            if by_role and isinstance(choice, Mapping):
                yield from _list_names("loss", choice.get(ROLE_LOSS))


def _list_names(kind: str, choice: Any) -> Iterator[tuple[str, str]]:
    name = choice.get("name") if isinstance(choice, Mapping) else choice
    if isinstance(name, str) and name:
        yield kind, name


def outside(of: str) -> list[MissingRequirement]:
    """Return the requirements of a package that are installed in a version outside the required range.

    The requirements of an extra are checked only if all its packages are installed, because the metadata does not
    record which extras the user installed.
    """
    found = find_installed(of)
    if found is None:
        return []
    unmet = []
    extras = [extra for extra in found.metadata.get_all("Provides-Extra") or () if not missing(of, [extra])]
    for requirement in parse_requirements(found.requires or (), extras):
        other = find_installed(requirement.name)
        if other is not None and not allows(requirement, other.version):
            unmet.append(missing_requirement(requirement, other.version))
    return unmet


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
