"""Lists of runs on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from rllm.cli import print_table


def print_runs(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print runs. The first cell of each row is the run's path."""
    if sys.stdout.isatty() and rows:
        print_blocks(headings[1:], rows)
    else:
        print_table(headings, rows)


def print_blocks(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print the path of each run in its own line, so that it is whole in a narrow terminal, and then its values."""
    widths = [max(map(len, column)) for column in zip(headings, *(row[1:] for row in rows), strict=True)]

    def aligned(cells: Sequence[str]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

    click.secho(aligned(headings), dim=True)
    for path, *values in rows:
        click.secho(path, bold=True)
        click.echo(aligned(values))
