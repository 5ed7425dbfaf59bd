"""``rllm plugins info``: describe one plugin and its options."""

from __future__ import annotations

import click

LONGEST_LINE = 80
"""Letters of a fact in the table of facts; a longer list has its own table."""


@click.command()
@click.argument("kind")
@click.argument("name")
def info(kind: str, name: str) -> None:
    """Show one plugin: what it does, where it comes from, and its options.

    `rllm plugins list` shows KIND and NAME. If two packages have the same NAME, write DISTRIBUTION/NAME.

    \b
    Examples:
      rllm plugins info estimator grpo
      rllm plugins info backend local
      rllm plugins info estimator rllm-core/grpo
    \b
    Options are set where the plugin is chosen:
      rllm.algorithm.adv_estimator={name: grpo, norm_adv_by_std_in_grpo: false}
    """
    from rllm.cli import print_table
    from rllm.inspection.describe import list_options
    from rllm.inspection.facts import HEADINGS, in_words, list_facts
    from rllm_core.plugins.registry import Registry

    entry = Registry.load().get(kind, name)
    plugin = entry.plugin
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
