"""`rllm plugins install`, `upgrade` and `uninstall`: packages with plugins, and the names that they add or remove."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rllm_core.errors import ConfigError, did_you_mean
from rllm_core.plugins.discovery import BLOCK_VARIABLE, COMMAND, CORE, PROGRAM, discover, normalize

if TYPE_CHECKING:
    from rllm.builtin.plugin_packages.installer import PackageChange

UNCHANGED = "Dry run: nothing was changed."
NAMES = click.argument("names", nargs=-1, required=True, metavar="NAME...")
CHANGE = (
    click.option("--json", "is_json", is_flag=True, help="Print JSON, for programs."),
    click.option("--dry-run", is_flag=True, help="Show the changes, and change nothing."),
)
SOURCE = (
    click.option("--no-index", is_flag=True, help="Read no index, only --find-links."),
    click.option("--find-links", multiple=True, metavar="DIRECTORY", help="Directory or page with wheels."),
    click.option("--index-url", metavar="URL", help="Address of the package index. The default is pip's or uv's."),
)
"""Options of pip and uv."""


class Name(NamedTuple):
    """A plugin or command of an installed package."""

    kind: str
    name: str
    distribution: str


def _add_options(*options: Callable[..., Any]) -> Callable[..., click.Command]:
    """Return a decorator that makes a command of package names with these options, the last one first in `--help`."""
    return lambda function: click.command()(NAMES(reduce(lambda made, option: option(made), options, function)))


@_add_options(*CHANGE, *SOURCE)
def install(names: tuple[str, ...], **chosen: Any) -> int:
    """Install packages with plugins into the running environment.

    NAME is a package, a requirement such as `rllm-median<2`, or the path of a package. A package that does not fit the
    installed version of rllm is rejected. Then nothing is changed. The code of a plugin runs with your rights.

    \b
    Examples:
      rllm plugins install rllm-median
      rllm plugins install rllm-median --dry-run --json
      rllm plugins install my-estimator --no-index --find-links ./wheels
    """
    return _install(names, **chosen)


@_add_options(*CHANGE, *SOURCE)
def upgrade(names: tuple[str, ...], **chosen: Any) -> int:
    """Upgrade packages with plugins to their newest versions that fit the installed version of rllm.

    \b
    Examples:
      rllm plugins upgrade rllm-median
      rllm plugins upgrade rllm-median --dry-run
    """
    from rllm.builtin.plugin_packages.installer import list_versions, requirement_name

    versions = list_versions()
    if missing := [name for name in names if requirement_name(name) not in versions]:
        hint = f"Install it: rllm plugins install {' '.join(missing)}"
        raise ConfigError("plugin-not-installed", f"{missing[0]} is not installed.", hint)
    return _install(names, "--upgrade", **chosen)


@_add_options(*CHANGE)
def uninstall(names: tuple[str, ...], dry_run: bool, is_json: bool) -> None:
    """Uninstall packages with plugins. Packages that other installed packages require are rejected.

    \b
    Examples:
      rllm plugins uninstall rllm-median
      rllm plugins uninstall rllm-median --dry-run
    """
    from rllm.builtin.plugin_packages.installer import find_installer, list_versions

    packages, versions = {normalize(name): None for name in names}, list_versions()
    _check_removable(packages, versions)
    before = list_names(packages)
    if not dry_run:
        find_installer().uninstall([*packages])
    _print_changes({name: (versions[name], "") for name in packages}, before, [], is_json=is_json)
    if dry_run:
        click.echo(UNCHANGED, err=True)


def list_names(distributions: Collection[str]) -> list[Name]:
    """Return the plugins and commands of installed packages.

    A new process imports them, because this process may have imported an earlier version. It prints the names of broken
    plugins.
    """
    words = [sys.executable, "-m", PROGRAM, "plugins", "list", "--json"]
    listed: list[dict[str, Any]] = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)
    plugins = [Name(each["kind"], each["name"], each["distribution"]) for each in listed]
    commands = [Name(COMMAND, each.entry_point, each.distribution) for each in discover().commands]
    return [name for name in (*plugins, *commands) if normalize(name.distribution) in distributions]


def _install(
    requirements: Sequence[str],
    *options: str,
    index_url: str | None,
    find_links: Sequence[str],
    no_index: bool,
    dry_run: bool,
    is_json: bool,
) -> int:
    """Install packages and print the changes. Return the exit code, which is 1 if no plugin of them can be used."""
    from rllm.builtin.plugin_packages.installer import find_installer, list_versions

    words = [*options, *(f"--find-links={place}" for place in find_links)]
    words += [*([f"--index-url={index_url}"] if index_url else []), *(["--no-index"] if no_index else [])]
    _check_packages(requirements)
    installer, versions = find_installer(), list_versions()
    planned = installer.resolve(requirements, words)
    changes = {each.distribution: (versions.get(each.distribution, ""), each.version) for each in planned}
    before = list_names(changes) if changes else []
    if planned and not dry_run:
        installer.install(requirements, words)
        after = list_names(changes)
    else:
        after = list(_list_announced_names(planned))
    _print_changes(changes, before, after, is_json=is_json)
    if planned and dry_run:
        click.echo(UNCHANGED, err=True)
    is_unusable = bool(planned) and not dry_run and not after
    if is_unusable:
        click.echo("No plugin of these packages can be used. `rllm plugins doctor` shows the reason.", err=True)
    return int(is_unusable)


def _check_packages(requirements: Sequence[str]) -> None:
    """Check that no requirement is the name of a plugin, because an unrelated package can have this name.

    Raises:
        ConfigError: a plugin of the index has this name, and no package of the index. Or it is a path without a file.
    """
    from rllm.builtin.plugin_packages.search import list_offers

    offers = list(list_offers())
    packages = {offer.distribution for offer in offers}
    for requirement in requirements:
        if requirement.startswith((".", "/", "~")) and not Path(requirement.partition("[")[0]).expanduser().exists():
            raise ConfigError(
                "file-not-found", f"There is no package at {requirement}.", f"Paths start at {Path.cwd()}."
            )
        homes = sorted({offer.distribution for offer in offers if offer.name == requirement} - {requirement})
        if homes and normalize(requirement) not in packages:
            raise ConfigError(
                "not-a-plugin",
                f"{requirement} is a plugin in {' and '.join(homes)}. No package of the index has this name.",
                f"Install the package: rllm plugins install {homes[0]}",
            )


def _list_announced_names(planned: Sequence[PackageChange]) -> Iterator[Name]:
    """Yield the plugins that packages list in their keywords."""
    from rllm.builtin.plugin_packages.refresh import read_offers

    for each in planned:
        yield from (Name(kind, name, each.distribution) for kind, name in read_offers(each.keywords))


def _check_removable(names: Collection[str], versions: Mapping[str, str]) -> None:
    """Check that packages are installed, offer plugins, and are not required by other packages.

    Raises:
        ConfigError: a package must not be uninstalled here.
    """
    discovery = discover()
    offering = {
        normalize(each.distribution): each for each in (*discovery.candidates, *discovery.blocked, *discovery.commands)
    }
    for name in names:
        if name not in versions:
            hint = did_you_mean(name, offering) or "List packages: rllm plugins list"
            raise ConfigError("plugin-not-installed", f"{name} is not installed.", hint)
        if name in (PROGRAM, CORE) or name not in offering:
            hint = f"Use pip, if you want to remove it: pip uninstall {name}"
            raise ConfigError("not-a-plugin", f"{name} is not a package with plugins for rllm.", hint)
        requiring = sorted(_list_requiring(name) - {*names})
        if requiring:
            raise ConfigError(
                "plugin-required",
                f"{name} is required by {', '.join(requiring)}.",
                f"To run without its plugins, set {BLOCK_VARIABLE}={name}",
            )


def _list_requiring(name: str) -> set[str]:
    """Return the normalized names of installed packages that require a package without an extra."""
    from importlib.metadata import distributions

    from rllm_core.plugins.requirements import parse_requirements

    return {
        normalize(each.metadata["Name"])
        for each in distributions()
        if any(normalize(requirement.name) == name for requirement in parse_requirements(each.requires or ()))
    }


def _print_changes(
    versions: Mapping[str, tuple[str, str]], before: Collection[Name], after: Collection[Name], *, is_json: bool
) -> None:
    """Print versions and names before and after. An empty version means that the package is not installed."""
    from rllm_record.terminal import print_table

    names = [*before, *(name for name in after if name not in before)]
    plugins = [(_describe_change(name in before, name in after), *name) for name in names]
    packages = [(name, old, new) for name, (old, new) in sorted(versions.items())]
    if is_json:
        result = {
            "packages": [dict(zip(("package", "before", "after"), each, strict=True)) for each in packages],
            "plugins": [dict(zip(("change", "kind", "name", "package"), each, strict=True)) for each in plugins],
        }
        click.echo(json.dumps(result, indent=2))
        return
    if not packages:
        click.echo("Nothing to change: these packages are installed.")
        return
    print_table(("package", "before", "after"), [(name, old or "-", new or "-") for name, old, new in packages])
    if plugins:
        click.echo()
        print_table(("plugin is", "kind", "name", "package"), plugins, bold=2)


def _describe_change(was: bool, is_now: bool) -> str:
    return "kept" if was and is_now else "added" if is_now else "removed"
