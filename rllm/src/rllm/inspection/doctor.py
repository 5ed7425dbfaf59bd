"""``rllm plugins doctor``: check all installed plugins, commands and packages, and give a remedy for each problem."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import click

from rllm.cli import commands_in
from rllm.cli.plugin_commands import PluginCommands, format_candidates, format_hint, load_command
from rllm.config.missing_packages import missing, outside
from rllm.config.packaged import search_directory
from rllm_core.contracts.backend import BackendPlugin, Finding, Severity
from rllm_core.contracts.chosen import Registered
from rllm_core.contracts.objective import ObjectivePlugin
from rllm_core.errors import ConfigError, PluginError
from rllm_core.plugins.discovery import BLOCK_VARIABLE, CORE, PROGRAM, Discovery, normalize
from rllm_core.plugins.registry import Registry, describe_failure
from rllm_core.plugins.specs import KINDS


@click.command()
@click.option("--gpu", is_flag=True, help="Also check this machine's GPUs and the backends' requirements for them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.pass_obj
def doctor(debug: bool | None, gpu: bool, as_json: bool) -> int:
    """Check every installed plugin and command, and print a remedy for each problem.

    This loads all plugins, so it takes a few seconds. The exit code is 1 if a plugin cannot be used.

    \b
    Examples:
      rllm plugins doctor
      rllm plugins doctor --gpu            (on a machine with GPUs, before the first run)
      rllm plugins doctor --debug          (with the traceback of each broken plugin)
      rllm plugins doctor --json | jq -r '.[] | select(.severity == "error") | .remedy'
    """
    registry = Registry.load()
    commands = commands_in(registry.discovery)
    of_packages = examine_packages(registry.discovery)
    of_gpus = examine_gpus(registry) if gpu else []
    findings = worst_first([*examine(registry), *of_packages, *examine_commands(commands), *of_gpus])
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
        return int(any(finding.severity == "error" for finding in findings))
    for finding in findings:
        click.echo(finding.printed(debug=bool(debug)))
    errors = sum(finding.severity == "error" for finding in findings)
    count = f"{sum(len(registry.all(kind)) for kind in KINDS)} plugins"
    if number := len(commands.usable):
        count += f" and {number} command{'s' * (number > 1)}"
    warnings = sum(finding.severity == "warning" for finding in findings)
    result = f"{errors} cannot be used" if errors else "all load, with warnings" if warnings else "all work"
    click.echo(f"{count} checked, {result}.")
    return 1 if errors else 0


def examine(registry: Registry) -> list[Finding]:
    """Check all plugins and call every `load`, which may import torch and take a while. Return worst findings first."""
    findings = [
        *_list_broken_plugins(registry),
        *_loads(registry),
        *_clashes(registry),
        *_entry_points(registry),
        *_unknown_names(registry),
        *_list_deprecated_plugins(registry),
        *_list_blocked_plugins(registry),
    ]
    return worst_first(findings)


def examine_gpus(registry: Registry) -> list[Finding]:
    """Return the backends' findings about this machine's GPUs, without duplicates."""
    findings: list[Finding] = []
    for entry in registry.all("backend"):
        if entry.plugin.examine_gpus is None:
            continue
        try:
            findings.extend(entry.plugin.examine_gpus())
        except Exception as error:  # noqa: BLE001  (plugin code must not stop the checkup)
            problem = f"its GPU check failed: {describe_failure(error)}"
            remedy = f"report it to the authors of {entry.distribution}"
            findings.append(
                Finding(
                    code="gpu-check-failed",
                    severity="error",
                    subject=f"{entry.kind} {entry.qualified_name}",
                    problem=problem,
                    remedy=remedy,
                )
            )
    return list(dict.fromkeys(findings))


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings: errors, then warnings, then notes. The order within each is unchanged."""
    order: tuple[Severity, ...] = ("error", "warning", "note")
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def _list_broken_plugins(registry: Registry) -> Iterator[Finding]:
    for plugin in registry.broken:
        yield Finding(
            code="broken-plugin",
            severity="error",
            subject=f"{plugin.name} ({plugin.distribution} {plugin.version})",
            problem=f"broken: {plugin.reason}",
            remedy=(plugin.remedy or f"upgrade or uninstall {plugin.distribution}")
            + f", or go without: {BLOCK_VARIABLE}={plugin.name}",
            traceback=plugin.traceback,
        )


def _loads(registry: Registry) -> Iterator[Finding]:
    for kind in KINDS:
        for entry in registry.all(kind):
            severity: Severity = "error"
            code = "plugin-not-loadable"
            remedy = f"install what is missing, or report it to the authors of {entry.distribution}"
            try:
                problem = _problem_of_options(entry) or _problem_of_load(entry)
            except (PluginError, ConfigError) as error:
                # A PluginError knows itself what is missing, such as an optional package.
                severity = "note" if isinstance(error, PluginError) else "error"
                code, problem, remedy = error.code, error.message, error.hint
            except (Exception, SystemExit) as error:  # noqa: BLE001  (plugin code must not stop the checkup)
                problem = f"it cannot be loaded: {describe_failure(error)}"
            if problem:
                subject = f"{kind} {entry.qualified_name}"
                yield Finding(code=code, severity=severity, subject=subject, problem=problem, remedy=remedy)


def _problem_of_options(entry: Registered[Any]) -> str:
    try:
        _ = entry.plugin.params
    except PluginError as error:
        return error.message.rstrip(".")
    return ""


def _problem_of_load(entry: Registered[Any]) -> str:
    loaded = entry.plugin.load()
    is_optional = isinstance(entry.plugin, ObjectivePlugin)
    if not callable(loaded) and not (is_optional and loaded is None):
        return "its load returns something that cannot be called"
    if isinstance(entry.plugin, BackendPlugin) and entry.plugin.config_yaml is not None:
        try:
            search_directory(entry.plugin)
        except ValueError as error:
            return str(error)
    return ""


def _clashes(registry: Registry) -> Iterator[Finding]:
    for entries in registry.conflicts():
        yield Finding(
            code="ambiguous-plugin",
            severity="warning",
            subject=f"{entries[0].kind} {entries[0].name}",
            problem="offered by " + " and by ".join(f"{entry.distribution} {entry.version}" for entry in entries),
            remedy="in config, write " + " or ".join(entry.qualified_name for entry in entries),
        )


def _entry_points(registry: Registry) -> Iterator[Finding]:
    for candidate in (*registry.discovery.candidates, *registry.discovery.blocked):
        package = normalize(candidate.distribution)
        if not f"{normalize(candidate.entry_point)}-".startswith(f"{package}-"):
            yield Finding(
                code="bad-entry-point-name",
                severity="warning",
                subject=f"{candidate.distribution} {candidate.version}",
                problem=f"its entry point is named {candidate.entry_point!r}, not like the package",
                remedy=f"its authors should write {package} = … or {package}-FEATURE = … under [project.entry-points]",
            )


def _unknown_names(registry: Registry) -> Iterator[Finding]:
    blocks = [(BLOCK_VARIABLE, name) for name in registry.discovery.unknown_blocks]
    for setting, name in (*blocks, *registry.discovery.unknown_allows):
        core = normalize(name) in (CORE, PROGRAM)
        yield Finding(
            code="unknown-plugin",
            severity="warning",
            subject=setting,
            problem=f"names {name!r}, " + ("which cannot be blocked" if core else "and no such plugin is installed"),
            remedy=f"take it out of {setting}" + ("" if core else ", or correct its spelling"),
        )


def _list_deprecated_plugins(registry: Registry) -> Iterator[Finding]:
    for kind in KINDS:
        for entry in registry.all(kind):
            if entry.plugin.deprecated:
                yield Finding(
                    code="deprecated-plugin",
                    severity="note",
                    subject=f"{kind} {entry.qualified_name}",
                    problem=f"deprecated: {entry.plugin.deprecated}",
                    remedy="choose another one in new runs",
                )


def _list_blocked_plugins(registry: Registry) -> Iterator[Finding]:
    commands = [command for command in registry.discovery.commands if command.blocked_by]
    blocked = {candidate.distribution: candidate for candidate in (*commands, *registry.discovery.blocked)}
    for _, candidate in sorted(blocked.items()):
        yield Finding(
            code="blocked-plugin",
            severity="note",
            subject=f"{candidate.distribution} {candidate.version}",
            problem=f"blocked by {candidate.blocked_by}",
            remedy="nothing, if that is what you want",
        )


def examine_commands(commands: PluginCommands) -> Iterator[Finding]:
    """Import every command, which may take a while. Commands of blocked plugins are skipped."""
    for candidate in commands.usable:
        try:
            load_command(candidate)
        except PluginError as error:
            yield Finding(
                code=error.code,
                severity="error",
                subject=f"command {candidate.entry_point}",
                problem=error.message.rstrip("."),
                remedy=error.hint if error.hint.startswith("pip install") else _report(candidate.distribution),
                traceback="".join(traceback.format_exception(error)),
            )
    for name, offers in commands.by_name().items():
        if len(offers) > 1:
            yield Finding(
                code="ambiguous-command",
                severity="warning",
                subject=f"command {name}",
                problem=f"offered by {format_candidates(offers)}",
                remedy=format_hint(offers).rstrip("."),
            )
    for candidate in commands.hidden:
        yield Finding(
            code="shadowed-command",
            severity="note",
            subject=f"{candidate.distribution} {candidate.version}",
            problem=f"its command {candidate.entry_point!r} is ignored: `rllm {candidate.entry_point}` is the core's",
            remedy="its authors should choose another name",
        )


def _report(distribution: str) -> str:
    return f"upgrade or uninstall {distribution}, or report it to its authors"


def examine_packages(discovery: Discovery) -> Iterator[Finding]:
    """Find missing packages and untested versions. The core's version is not checked here: it makes plugins broken."""
    commands = [candidate for candidate in discovery.commands if not candidate.blocked_by]
    names = {normalize(each.distribution): each.distribution for each in (*discovery.candidates, *commands)}
    for name in (CORE, *sorted(names)):
        subject = names.get(name, CORE)
        for unmet in missing(subject):
            yield Finding(
                code="missing-package",
                severity="error",
                subject=subject,
                problem=f"requires {unmet.requirement}, which is not installed",
                remedy=f"pip install '{unmet.requirement}'",
            )
        for unmet in outside(subject):
            if normalize(unmet.name) != CORE:
                yield Finding(
                    code="wrong-version",
                    severity="warning",
                    subject=subject,
                    problem=f"requires {unmet.requirement}, and {unmet.installed} is installed, which is not tested",
                    remedy=f"pip install '{unmet.requirement}'",
                )
