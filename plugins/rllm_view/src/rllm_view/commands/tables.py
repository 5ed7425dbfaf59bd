"""Tables on the terminal. In a pipe they are plain text as wide as it must be, so that nothing is cut off."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of plain text under headings."""
    if not rows:
        click.echo("None.")
    elif sys.stdout.isatty():
        _print_for_people(headings, rows)
    else:
        for line in _align([headings, *rows]):
            click.echo(line)


def _print_for_people(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    # Imported here, because it takes longer than printing to a pipe.
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, heading in enumerate(headings):
        table.add_column(heading, style="" if index else "bold", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def _align(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def print_runs(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print runs. The first cell of each row is the run's path."""
    if sys.stdout.isatty() and rows:
        print_blocks(headings[1:], rows)
    else:
        print_table(headings, rows)


def print_blocks(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print the path of each run in its own line, so that it is whole in a narrow terminal, and then its values."""
    first, *others = _align([headings, *(row[1:] for row in rows)])
    click.secho(first, dim=True)
    for row, values in zip(rows, others, strict=True):
        click.secho(row[0], bold=True)
        click.echo(values)
