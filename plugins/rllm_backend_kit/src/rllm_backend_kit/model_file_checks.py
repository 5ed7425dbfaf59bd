"""Check the files of a model's directory in milliseconds, before a backend loads them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rllm_core.errors import ConfigError

VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.*", "spiece.model", "*.tiktoken", "tekken.json")
"""Files with the tokens of a tokenizer."""
WITHOUT_VOCABULARY = ("ByT5", "Canine", "Perceiver")
"""Tokenizers of bytes or characters, which need no such file."""
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.index.json")
POINTER = b"version https://git-lfs"
LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header."""
LONGEST_HEADER = 100_000_000
AGAIN = "Download or save {} again."


def check_model_files(label: str, directory: Path) -> None:
    """Check a directory with a ``config.json`` before a run. Only a config passes: `--dry-run` prints its memory.

    Args:
        label: begin of the message: the config key with its value.
        directory: a directory with a ``config.json``.

    Raises:
        ConfigError: a file is missing or damaged. The message has its name.
    """
    _raise_first(label, _find_damaged_json(directory))
    if _has_any(directory, (*WEIGHTS, *VOCABULARIES)):
        check_whole_model(label, directory)


def check_whole_model(label: str, directory: Path) -> None:
    """Check that tokenizer and weights exist, and that the weights have their whole length.

    `check_model_files` has the arguments and errors.
    """
    _raise_first(label, _find_problems(directory))


def _raise_first(label: str, problems: Iterator[tuple[str, str]]) -> None:
    for problem, remedy in problems:
        raise ConfigError("model-not-loadable", f"{label}: {problem}.", remedy)


def _find_damaged_json(directory: Path) -> Iterator[tuple[str, str]]:
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json", "model.safetensors.index.json"):
        if (directory / name).is_file() and _read_json(directory / name) is None:
            yield _explain_damage(directory / name, "is not a JSON object")


def _find_problems(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield each problem, with its remedy."""
    if not _has_tokenizer(directory):
        remedy = "Copy tokenizer.json and tokenizer_config.json from the model that it was trained from."
        yield f"{directory} has no tokenizer, such as tokenizer.json", remedy
    if not _has_any(directory, WEIGHTS):
        yield f"{directory} has no weights, such as model.safetensors", "Save or download the whole model."
    index = _read_json(directory / "model.safetensors.index.json") or {}
    single = directory / "model.safetensors"
    shards = {directory / str(name) for name in dict(index.get("weight_map", {})).values()}
    # transformers reads the single file if both exist.
    for file in [single] if single.is_file() else sorted(shards):
        if not file.is_file():
            yield f"{file} is missing, and its model.safetensors.index.json lists it", AGAIN.format(file.name)
        elif problem := find_damage(file):
            yield _explain_damage(file, problem)


def find_damage(file: Path) -> str | None:
    """Return the problem of a safetensors file, from its header and its length. None if it has none."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(LENGTH_BYTES), "little")
        if not 0 < length <= min(size - LENGTH_BYTES, LONGEST_HEADER):
            return f"has {size:,} bytes and no whole header"
        try:
            header = json.loads(opened.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            return "has no readable header"
    needed = LENGTH_BYTES + length + max(ends, default=0)
    return None if size == needed else f"has {size:,} of {needed:,} bytes"


def _explain_damage(file: Path, problem: str) -> tuple[str, str]:
    with file.open("rb") as opened:
        is_pointer = opened.read(len(POINTER)) == POINTER
    if is_pointer:
        return f"{file} is a pointer of Git LFS, not the file itself", f"Run: git -C {file.parent} lfs pull"
    return f"{file} {problem}", AGAIN.format(file.name)


def _has_tokenizer(directory: Path) -> bool:
    config = _read_json(directory / "tokenizer_config.json") or {}
    needs_none = str(config.get("tokenizer_class")).startswith(WITHOUT_VOCABULARY) or "auto_map" in config
    return needs_none or _has_any(directory, VOCABULARIES)


def _has_any(directory: Path, patterns: Sequence[str]) -> bool:
    return any(any(directory.glob(pattern)) for pattern in patterns)


def _read_json(file: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file. None if it does not exist or is not an object."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
