"""Docstrings and tables as Markdown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

ROLE = re.compile(r"``(.+?)``", re.DOTALL)


def table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table; cells are Markdown already."""
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def cell(text: str) -> str:
    """Text for a table: one line, without what would end the cell."""
    return " ".join(text.replace("|", "\\|").split())


def one_line(text: str) -> str:
    """Text for a paragraph: one line."""
    return " ".join(text.split())


def doc_cell(docstring: str) -> str:
    """A docstring for a table."""
    return cell(_plain(docstring))


def doc_text(docstring: str) -> str:
    """A docstring, already dedented, as paragraphs; what follows ``::`` is a block of code."""
    lead, colons, example = docstring.partition("::\n")
    prose = _plain(lead + (":" if colons else ""))
    paragraphs = "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", prose.strip()))
    if not colons:
        return paragraphs + "\n"
    return f"{paragraphs}\n\n{python(textwrap.dedent(example))}"


def python(code: str) -> str:
    """A block of Python."""
    return "```python\n" + code.strip("\n") + "\n```\n"


def _plain(text: str) -> str:
    """Without reST's double backticks; a section of errors becomes sentences."""
    sentences = re.sub(r"Raises:\n", "", ROLE.sub(r"`\1`", text))
    return re.sub(r"^ {4}(\w+Error): ", r"Raises `\1`: ", sentences, flags=re.MULTILINE)
