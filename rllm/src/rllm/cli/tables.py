"""Tables on the terminal; into a pipe they are plain text, as wide as they need to be, so that nothing is cut off."""

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
        _print_for_programs(headings, rows)


def _print_for_programs(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [headings, *rows] if headings else list(rows)
    widths = [max(len(line[column]) for line in lines) for column in range(len(rows[0]))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _print_for_people(headings: Sequence[str], rows: Sequence[Sequence[str]], bold: int) -> None:
    # Imported here: it takes longer than everything else that listing plugins to a pipe does.
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD if headings else None, show_header=bool(headings), pad_edge=False)
    for index, heading in enumerate(headings or [""] * len(rows[0])):
        table.add_column(heading, style="bold" if index == bold else "", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
