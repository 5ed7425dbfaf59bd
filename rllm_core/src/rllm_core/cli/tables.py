"""Tables on the terminal; into a pipe they are as wide as they need to be, so that nothing is cut off."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 1000
"""Columns assumed when the output is no terminal: wider than any row."""


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, bold: int = 0) -> None:
    """Print rows of plain text under headings, if there are any. `bold` is the index of the column to stand out."""
    if not rows:
        click.echo("None.")
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    table = Table(box=box.SIMPLE_HEAD if headings else None, show_header=bool(headings), pad_edge=False)
    for index, heading in enumerate(headings or [""] * len(rows[0])):
        table.add_column(heading, style="bold" if index == bold else "", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().strip("\n").splitlines():
        if line.strip():
            click.echo(line.rstrip())
