"""`rllm plugins verify`: compare the plugins of a run with the installed plugins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rllm_record.store.fetching import RunPath

if TYPE_CHECKING:
    from rllm.runs.plugin_check import Difference, UsedPackage


@click.command()
@click.argument("run", type=RunPath())
@click.option("--json", "is_json", is_flag=True, help="Print JSON, for programs.")
def verify(run: Path, is_json: bool) -> int:
    """Compare the plugins of RUN with the installed plugins: versions, code, and names.

    RUN is a run directory. The exit code is 1 if a plugin is changed, missing, broken or ambiguous. The code of a
    package is compared by a digest of its wheel, and its files are compared with the wheel.

    \b
    Examples:
      rllm plugins verify runs/rllm-training/guess-1
      rllm plugins verify runs/rllm-training/guess-1 --json
    """
    import json

    from rllm.runs.plugin_check import (
        compare_plugins,
        digest_package,
        find_package,
        find_unloadable_plugins,
        read_used_packages,
        short_digest,
    )
    from rllm_core.errors import ConfigError
    from rllm_core.plugins.registry import Registry
    from rllm_record.run_files import PLUGINS, no_run_error
    from rllm_record.terminal import print_table

    directory = run.expanduser()
    if not directory.is_dir():
        raise no_run_error(directory)
    used = read_used_packages(directory)
    if not used and (directory / PLUGINS).is_file():
        hint = "`--resume` writes it again, with the plugins that are installed now."
        raise ConfigError("damaged-file", f"{run / PLUGINS} is damaged, so the plugins of this run are unknown.", hint)
    if not used:
        raise ConfigError(
            "run-not-found", f"{run} has no list of plugins ({PLUGINS}).", "`rllm runs list` lists your runs."
        )
    registry = Registry.load()
    differences = [*compare_plugins(used, registry), *find_unloadable_plugins(used, registry)]
    if is_json:
        click.echo(
            json.dumps({"packages": len(used), "differences": [each._asdict() for each in differences]}, indent=2)
        )
        return int(bool(differences))
    rows = []
    for package in used:
        installed = find_package(package.distribution)
        digests = short_digest(package.digest), short_digest(digest_package(package.distribution))
        versions = package.version, installed.version if installed else "-"
        rows.append((package.distribution, *versions, *digests, _describe_result(package, differences)))
    print_table(("package", "version", "installed", "code", "installed code", "result"), rows)
    for difference in differences:
        click.echo(difference.lines())
    return int(bool(differences))


def _describe_result(package: UsedPackage, differences: list[Difference]) -> str:
    found = [each.problem for each in differences if each.distribution == package.distribution]
    return ", ".join(dict.fromkeys(found)) or ("same" if package.digest else "same version")
