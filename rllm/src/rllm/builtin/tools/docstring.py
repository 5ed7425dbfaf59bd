"""Read descriptions of a function and its arguments from a docstring in Google's style."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

SECTION = re.compile(r"^(Args|Arguments|Returns|Raises|Yields|Examples?):\s*$", re.MULTILINE)
ARGUMENT = re.compile(r"^(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


def read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the description of `function`, and the descriptions of its arguments, from its docstring."""
    # ["does this", "Args", "what follows", "Returns", …]
    parts = SECTION.split(inspect.getdoc(function) or "")
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    return parts[0].strip(), _arguments(sections.get("Args", sections.get("Arguments", "")))


def _arguments(section: str) -> dict[str, str]:
    lines = [line for line in inspect.cleandoc("\n" + section).splitlines() if line.strip()]
    found: dict[str, str] = {}
    name = None
    for line in lines:
        if (match := ARGUMENT.match(line)) is not None:
            name, text = match[1], match[2]
            found[name] = text.strip()
        elif name is not None:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found
