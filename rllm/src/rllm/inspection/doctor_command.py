"""``rllm plugins doctor``: whether everything that is installed works."""

from __future__ import annotations

import click


@click.command()
@click.option("--gpu", is_flag=True, help="Also check this machine's GPUs and the backends' requirements for them.")
@click.pass_obj
def doctor(debug: bool | None, gpu: bool) -> int:
    """Check every installed plugin and command, and print a remedy for each problem.

    This loads all plugins, so it takes a few seconds. The exit code is 1 if a plugin cannot be used.

    \b
    Examples:
      rllm plugins doctor
      rllm plugins doctor --gpu            (on a machine with GPUs, before the first run)
      rllm plugins doctor --debug          (with the traceback of each broken plugin)
    """
    from rllm.cli import commands_in
    from rllm.inspection.command_doctor import examine_commands
    from rllm.inspection.doctor import examine, examine_gpus, worst_first
    from rllm.inspection.package_doctor import examine_packages
    from rllm_core.plugins.registry import Registry
    from rllm_core.plugins.specs import KINDS

    registry = Registry.load()
    commands = commands_in(registry.discovery)
    of_packages = examine_packages(registry.discovery)
    of_gpus = examine_gpus(registry) if gpu else []
    findings = worst_first([*examine(registry), *of_packages, *examine_commands(commands), *of_gpus])
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
