"""``rllm plugins list --installable``: list rllm packages that are not installed, with their plugins."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

from rllm.cli.tables import print_table
from rllm_core.plugins.discovery import discover
from rllm_core.plugins.first_party import Entry, list_uninstalled_packages
from rllm_core.plugins.registry import Registry


def missing_distributions(kind: str | None) -> dict[str, Entry]:
    """Return the distributions that offer plugins of a kind, or of any kind, and are not installed. Imports no plugin.

    Raises:
        PluginError: no such kind exists.
    """
    registry = Registry(discovery=discover())
    if kind is None:
        return list_uninstalled_packages(registry.discovery.distributions())
    registry.all(kind)
    return list_uninstalled_packages(registry.discovery.distributions(), [kind])


def print_for_people(missing: Mapping[str, Entry]) -> None:
    rows = [
        (name, entry.summary, "; ".join(f"{kind} {', '.join(names)}" for kind, names in entry.offers.items()))
        for name, entry in missing.items()
    ]
    print_table(("distribution", "what it does", "adds"), rows, bold=0)
    if rows:
        click.echo("To install one: pip install DISTRIBUTION")


def print_json(missing: Mapping[str, Entry]) -> None:
    entries = [
        {
            "distribution": name,
            "summary": entry.summary,
            "offers": {kind: list(names) for kind, names in entry.offers.items()},
            "install": f"pip install {name}",
        }
        for name, entry in missing.items()
    ]
    click.echo(json.dumps(entries, indent=2))
