"""The files of an agent, which a resumed run compares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rllm_gateway.running.target import source_of, target_of

LARGEST = 1 << 20
"""Bytes of a file that is a program; larger ones are data."""


def sources_of_function(agent: str) -> dict[str, str]:
    """The file or module of ``place:function``, by its place. Raises ConfigError: it is not there."""
    target = target_of(agent)
    source = source_of(target)
    return {} if source is None else {target.place: _text(source) or ""}


def sources_of_command(command: Sequence[str]) -> dict[str, str]:
    """The words of a command that are files with text, such as ``my_program.py``."""
    return {word: text for word in command if (text := _text(Path(word).expanduser())) is not None}


def _text(path: Path) -> str | None:
    """None: no file, too large, or no text."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
