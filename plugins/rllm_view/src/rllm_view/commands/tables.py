"""Runs on the terminal: a table, or a block for each run."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from rllm_record.terminal import align, print_table


def print_runs(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print runs. The first cell of each row is the run's path."""
    if sys.stdout.isatty() and rows:
        print_blocks(headings[1:], rows)
    else:
        print_table(headings, rows)


def print_blocks(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print the path of each run in its own line, so that it is whole in a narrow terminal, and then its values."""
    first, *others = align([headings, *(row[1:] for row in rows)])
    click.secho(first, dim=True)
    for row, values in zip(rows, others, strict=True):
        click.secho(row[0], bold=True)
        click.echo(values)
