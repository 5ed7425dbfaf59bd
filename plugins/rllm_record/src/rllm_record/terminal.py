"""Tables on the terminal. In a pipe they are plain text of any width, so that nothing is cut off."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, bold: int = 0) -> None:
    """Print rows of plain text under headings, if any. `bold` is the index of the highlighted column."""
    if not rows:
        click.echo("None.")
    elif sys.stdout.isatty():
        _print_for_people(headings, rows, bold)
    else:
        for line in align([headings, *rows] if headings else rows):
            click.echo(line)


def align(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return each line with its cells padded to the widths of their columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def _print_for_people(headings: Sequence[str], rows: Sequence[Sequence[str]], bold: int) -> None:
    # Imported here, because it takes longer than printing to a pipe.
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD if headings else None, show_header=bool(headings), pad_edge=False)
    for index, heading in enumerate(headings or [""] * len(rows[0])):
        table.add_column(heading, style="bold" if index == bold else "", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)
