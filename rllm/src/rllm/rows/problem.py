"""`RowError`: a part of a row that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rllm_core.errors import ConfigError


class RowError(Exception):
    """A part of a row that is not used and may have a meaning."""

    def __init__(self, place: str, problem: str, hint: str) -> None:
        super().__init__(f"{place} {problem}")
        self.place = place
        """The part, such as ``messages[0].role``."""
        self.problem = problem
        """The part's value and its problem, such as ``is 'human', which is no role``."""
        self.hint = hint


@contextmanager
def naming(row: str) -> Iterator[None]:
    """Turn a RowError of the block into a ConfigError with the row, such as ``Row '7'``."""
    try:
        yield
    except RowError as error:
        raise ConfigError("bad-row", f"{row}: {error}.", error.hint) from error


def shown(value: Any) -> str:
    """Return a value as the end of a sentence: ``is 'human'``, ``is null``, ``is a list``."""
    if isinstance(value, str | int | float):
        return f"is {value!r:.60}"
    return {type(None): "is null", list: "is a list", dict: "is an object"}.get(
        type(value), f"is a {type(value).__name__}"
    )
