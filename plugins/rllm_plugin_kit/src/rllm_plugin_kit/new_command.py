"""``rllm plugins new``: a package with a plugin in it, ready to be installed, tested, trained with and changed."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rllm_plugin_kit.scaffold.kinds import TEMPLATES

if TYPE_CHECKING:
    from rllm_plugin_kit.scaffold.naming import Names
    from rllm_plugin_kit.scaffold.porting import Port


@click.command()
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(list(TEMPLATES)),
    default="estimator",
    show_default=True,
    help="Kind of the plugin.",
)
@click.option(
    "--into",
    metavar="DIRECTORY",
    type=click.Path(path_type=Path),
    help="Directory to write it to. The default is NAME.",
)
@click.option(
    "--from",
    "source",
    metavar="FUNCTION",
    help="Function for verl, OpenRLHF or TRL to call in the plugin: PACKAGE:MODULE.FUNCTION or FILE.py:FUNCTION.",
)
def new(name: str, kind: str, into: Path | None, source: str | None) -> None:
    """Write a package with one working plugin.

    NAME is the package's name for `pip install`. The plugin's name is NAME without a leading `rllm-`, with underscores.

    \b
    Write a plugin, install it, test it and train with it:
      rllm plugins new my-estimator
      pip install -e "./my-estimator[test]"
      pytest my-estimator
      rllm train guess --estimator my_estimator
    \b
    Then edit src/my_estimator/estimator.py. You need not install again after an edit. Other kinds:
      rllm plugins new rllm-chess --kind environment --into ~/code/chess
    \b
    Make a plugin of a function that you have for verl, OpenRLHF or TRL:
      rllm plugins new my-rloo --from verl:compute_rloo_outcome_advantage
      rllm plugins new my-rank --from my_file.py:compute_rank_advantage
      rllm plugins new my-gspo --kind loss --from verl:compute_policy_loss_gspo
      rllm plugins new my-clip --kind loss --from openrlhf:PolicyLoss
      rllm plugins new my-grpo --kind loss --from trl:GRPOTrainer
    """
    from rllm_plugin_kit.scaffold.naming import names_for
    from rllm_plugin_kit.scaffold.package import render, train_command, write

    names = names_for(name, kind)
    directory = into or Path(name)
    chosen = _chosen_as(names, kind)
    port = None if source is None else _port(names, kind, chosen, source)
    files = render(names, kind, chosen, port)
    write(files, directory)
    click.echo(f"{kind} {names.plugin}, in the package {name}:")
    for path in files:
        click.echo(f"  {directory / path}")
    # With a leading ./ pip does not take a directory for the name of a package.
    place = str(directory) if directory.is_absolute() else f"./{directory}"
    click.echo("Next:")
    click.echo(f"  pip install -e {shlex.quote(f'{place}[test]')}")
    click.echo(f"  pytest {shlex.quote(str(directory))}")
    click.echo(f"  {train_command(kind, chosen)}")


def _port(names: Names, kind: str, chosen: str, source: str) -> Port:
    """Return the function that the plugin calls, with the facts that its test needs. Print notes about it."""
    from rllm_core.errors import PluginError
    from rllm_plugin_kit.scaffold.package import render
    from rllm_plugin_kit.scaffold.porting import COLUMNS_OF, bind_arguments
    from rllm_plugin_kit.scaffold.probing import measure
    from rllm_plugin_kit.scaffold.sources import find_source

    if kind not in COLUMNS_OF:
        raise PluginError(
            "kind-not-portable",
            f"--from {source} cannot become a plugin of the kind {kind}.",
            "Remove --from FUNCTION, or use --kind estimator or loss.",
        )
    bound = port = bind_arguments(find_source(source), kind)
    probed = replace(names, module="_rllm_ported")
    while (measured := measure(port, render(probed, kind, chosen, port), probed.module)).bound != port.bound:
        port = measured
    for note in dict.fromkeys((*bound.notes, *measured.notes)):
        click.echo(f"warning: {note}", err=True)
    return measured


def _chosen_as(names: Names, kind: str) -> str:
    """Return the name that selects the new plugin in config. Print a note if this needs more than the plugin's name."""
    from rllm_core.plugins.discovery import find_home_package, normalize
    from rllm_core.plugins.registry import Registry

    owners = {entry.distribution for entry in Registry.load().all(kind) if entry.name == names.plugin}
    owners |= {home} if (home := find_home_package(kind, names.plugin)) else set()
    others = sorted(owner for owner in owners if normalize(owner) != names.distribution)
    if not others:
        return names.plugin
    qualified = f"{names.distribution}/{names.plugin}"
    click.echo(
        f"warning: {' and '.join(others)} has {kind} {names.plugin!r} too. If both are installed, write {qualified} "
        f"for yours, or change its name in {names.module}/plugin.py.",
        err=True,
    )
    return qualified
