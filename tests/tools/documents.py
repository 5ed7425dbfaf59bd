"""The commands and blocks of the documents, as their readers copy them."""

from __future__ import annotations

import re

from workspace import ROOT

PROGRAMS = ("rllm", "pip", "python", "pytest", "make", "ray", "export", "unset", "twine", "pre-commit")
_COMMAND = re.compile(rf"^(?: {{4}})?(?:\$ )?((?:[A-Z_]+=\S+ )*(?:{'|'.join(PROGRAMS)}) (?:.*\\\n)*.*)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHELL = ("sh", "console", "bash")


def text_of(page: str) -> str:
    """Return a page by its path in the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def commands(page: str) -> list[str]:
    """Return the commands of a page without comments: lines of indented and of shell blocks."""
    text = text_of(page)
    shell = "".join(code for language, code in _BLOCK.findall(text) if language in _SHELL)
    indented = "\n".join(line for line in _BLOCK.sub("", text).splitlines() if line.startswith("    "))
    found = _COMMAND.findall(f"{shell}\n{indented}")
    return [re.sub(r"\\\n\s*", "", each).partition("  #")[0].strip() for each in found]


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of a page in one language."""
    return [code for name, code in _BLOCK.findall(text_of(page)) if name == language]
