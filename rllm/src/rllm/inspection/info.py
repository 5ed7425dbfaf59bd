"""``rllm plugins info``: describe one plugin and its options."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import click

from rllm_core.contracts.backend import DerivedKey, SharedKey
from rllm_core.contracts.chosen import Registered
from rllm_core.contracts.plugin import GIVES_FACT, Plugin

LONGEST_LINE = 80
"""Letters of a fact in the table of facts; a longer list has its own table."""


@click.command()
@click.argument("kind")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def info(kind: str, name: str, as_json: bool) -> None:
    """Show one plugin: what it does, where it comes from, and its options.

    `rllm plugins list` shows KIND and NAME. If two packages have the same NAME, write DISTRIBUTION/NAME.

    \b
    Examples:
      rllm plugins info estimator grpo
      rllm plugins info backend local
      rllm plugins info estimator rllm-core/grpo
      rllm plugins info estimator grpo --json
    \b
    Options are set where the plugin is chosen:
      rllm.algorithm.adv_estimator={name: grpo, norm_adv_by_std_in_grpo: false}
    """
    from rllm.inspection.describe import list_options
    from rllm_core.plugins.registry import Registry
    from rllm_record.terminal import print_table

    entry = Registry.load().get(kind, name)
    plugin = entry.plugin
    if as_json:
        click.echo(json.dumps(describe_plugin(entry), indent=2))
        return
    click.echo(f"{entry.kind} {entry.name}: {plugin.summary}")
    if plugin.deprecated:
        click.echo(f"DEPRECATED: {plugin.deprecated}")
    click.echo()
    facts = list_facts(plugin)
    lists = {name: rows for name, rows in facts.items() if len(in_words(rows)) > LONGEST_LINE and len(rows) > 1}
    about = {"comes from": f"{entry.distribution} {entry.version}", "qualified name": entry.qualified_name}
    about |= {name: in_words(rows) for name, rows in facts.items() if name not in lists}
    print_table((), list(about.items()))
    options = list(list_options(plugin.params))
    click.echo("\nOptions:" if options else "\nIt has no options.")
    if options:
        print_table(("option", "type", "default", "meaning"), [tuple(option) for option in options])
    for name, rows in lists.items():
        click.echo(f"\n{name.capitalize()}:")
        print_table(HEADINGS.get(name, ()), rows)


def describe_plugin(entry: Registered[Any]) -> dict[str, Any]:
    """Return the facts and options of a plugin as JSON."""
    from rllm.cli import describe_entry
    from rllm.inspection.describe import list_options

    return {
        **describe_entry(entry),
        "facts": list_facts(entry.plugin),
        "options": [option._asdict() for option in list_options(entry.plugin.params)],
    }


Rows = list[tuple[str, ...]]
"""A fact that is a list: a name with a word or two on it in each row."""
HEADINGS = {
    "shared keys": ("backend", "core"),
    "derived keys": ("key", "follows from"),
    "unused keys": ("key", "what to do instead"),
    "unused keys by profile": ("profile", "key", "what to do instead"),
}
NOTHING: Rows = [("nothing",)]
_COMMON = {field.name for field in fields(Plugin)} - {"config_keys"}


def list_facts(plugin: Plugin[Any]) -> dict[str, Rows]:
    """Return the facts that are specific to the plugin's kind, such as level, scope, needs and capabilities.

    A single fact has one row with one cell.
    """
    return dict(_facts(plugin))


def in_words(rows: Rows) -> str:
    """Return a fact on one line."""
    return ", ".join(": ".join(row) for row in rows)


def _facts(record: Any) -> Iterator[tuple[str, Rows]]:
    for field in fields(record):
        value = getattr(record, field.name)
        # A function is the plugin's behavior, unless its field is marked as a fact.
        if field.name in _COMMON or (callable(value) and field.metadata != GIVES_FACT):
            continue
        value = value() if callable(value) else value
        if is_dataclass(value):
            yield from _facts(value)
        elif value is not None and (rows := list(_rows(value))) and (field.name, rows) != ("config_keys", NOTHING):
            yield field.name.replace("_", " "), rows


def _rows(value: Any) -> Iterator[tuple[str, ...]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            rows = [(name, _words(each)) for name, each in inner.items()] if isinstance(inner, Mapping) else None
            yield from [(key, *row) for row in rows] if rows is not None else [(key, _words(inner))]
    elif isinstance(value, frozenset | set):
        yield from [(each,) for each in sorted(value)] or NOTHING
    elif isinstance(value, tuple):
        yield from (_row(each) for each in value)
    else:
        yield (_words(value),)


def _row(value: Any) -> tuple[str, ...]:
    if isinstance(value, SharedKey):
        return value.native, value.rllm
    if isinstance(value, DerivedKey):
        return value.native, ", ".join(value.of)
    return (_words(value),)


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
