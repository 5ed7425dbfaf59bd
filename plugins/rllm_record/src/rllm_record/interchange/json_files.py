"""JSON and JSON lines: fields at the start of a file, objects one by one, and elements of an array one by one."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from rllm_core.errors import RllmError
from rllm_core.files import write_parts_atomically
from rllm_core.notices import warn_once

FIRST_BYTES, FIRST_LINE = 2**20, 64 * 2**20
"""Maximum number of bytes of a ``.json`` file, and of the first line of a ``.jsonl`` file, that show its format."""
_SPACE = re.compile(r"\s*")
_decode = json.JSONDecoder().raw_decode


class FormatError(RllmError):
    """No format recognizes a file, or it cannot be read or written."""

    exit_code = 2


def first_object(path: Path) -> Mapping[str, Any]:
    """Return the object of a ``.json`` file, or of the first line of a ``.jsonl`` file. Empty for all other files.

    Only the first bytes are read. A value that ends later is None, and the fields after it are missing.
    """
    if path.suffix not in (".json", ".jsonl") and not path.name.endswith(".jsonl.gz"):
        return {}
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            start = file.read(FIRST_BYTES) if path.suffix == ".json" else file.readline(FIRST_LINE)
    except OSError:
        return {}
    text = JsonText(start.decode("utf-8-sig", errors="ignore"))
    found: dict[str, Any] = {}
    try:
        for key, place in text.fields():
            found[key] = None
            value, end = _decode(text.text, place)
            # Without a character after it, a number may continue.
            found[key] = value if text.skip(end) < len(text.text) else None
    except (ValueError, IndexError):
        # The rest was not read, or it is not JSON. If it is not JSON, a reader raises the error.
        pass
    return found


class JsonText:
    """The text of an object, which may be large. Only the requested fields and elements of arrays are decoded."""

    def __init__(self, text: str) -> None:
        self.text = text

    def skip(self, place: int) -> int:
        """Return the place of the next character that is not white space."""
        return _SPACE.match(self.text, place).end()  # type: ignore[union-attr]

    def fields(self) -> Iterator[tuple[str, int]]:
        """Yield each key of the object and the place of its value.

        Raises:
            ValueError, IndexError: the text is not an object, or not complete.
        """
        place = self._enter(0, "{")
        while self.text[place] != "}":
            key, end = _decode(self.text, place)
            start = self._enter(end, ":")
            yield key, start
            place = self._next(_decode(self.text, start)[1], "}")

    def field(self, key: str) -> Any:
        """Return the value of a field. Raises KeyError if it is missing."""
        return _decode(self.text, self._place(key))[0]

    def items(self, key: str) -> Iterator[Any]:
        """Yield the elements of a field that is an array. Each is decoded when it is needed."""
        place = self._enter(self._place(key), "[")
        while self.text[place] != "]":
            value, end = _decode(self.text, place)
            yield value
            place = self._next(end, "]")

    def _place(self, key: str) -> int:
        for name, place in self.fields():
            if name == key:
                return place
        raise KeyError(key)

    def _enter(self, place: int, character: str) -> int:
        """Return the place after a required character and white space."""
        place = self.skip(place)
        if self.text[place] != character:
            raise ValueError(f"character {place} is {self.text[place]!r} instead of {character!r}")
        return self.skip(place + 1)

    def _next(self, end: int, bracket: str) -> int:
        """Return the place of the next value, or of the closing bracket."""
        place = self.skip(end)
        return place if self.text[place] == bracket else self._enter(place, ",")


def read_objects(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the object of a ``.json`` file, or the objects of a ``.jsonl`` file.

    If the last line is cut off, because a program still writes the file, a warning is printed and it is not used.

    Raises:
        ValueError: a different line is not JSON. The message has its number.
    """
    if path.suffix == ".json":
        yield json.loads(path.read_bytes())
        return
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError as error:
                if not line.endswith(b"\n"):
                    warn_once(f"{path}: the last line, {number}, is cut off, so it was skipped.")
                    return
                raise ValueError(f"line {number} is not JSON: {error}") from error


def write_objects(path: Path, objects: Iterable[Mapping[str, Any]]) -> None:
    """Write one object to a ``.json`` file, or a line for each to a ``.jsonl`` file. A line is written when it is made.

    Raises:
        FormatError: the name has a different ending, or a ``.json`` file would have several objects.
    """
    first = list(islice(objects, 2)) if path.suffix == ".json" else []
    if path.suffix not in (".json", ".jsonl") or (path.suffix == ".json" and len(first) != 1):
        raise FormatError(
            "wrong-file-type",
            f"{path} does not end in .jsonl, and a .json file has exactly one episode.",
            f"Use a file that ends in .jsonl: {path.with_suffix('.jsonl')}.",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    indent = 1 if path.suffix == ".json" else None
    write_parts_atomically(path, (f"{json.dumps(each, indent=indent)}\n" for each in first or objects))
