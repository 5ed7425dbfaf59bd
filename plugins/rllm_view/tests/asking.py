"""Sends the queries of a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from rllm_view.answers import Answers, Library
from rllm_view.as_json import as_json


class Asking:
    """Return the answer for a page."""

    def __init__(self, *directories: Path) -> None:
        self.library = Library(directories)
        self._answers = Answers(self.library)

    def __call__(self, path: str, **query: str) -> Any:
        return orjson.loads(as_json(self._answers.answer(path, query)))

    @property
    def ids(self) -> list[str]:
        return [run.place.id for run in self.library.runs()]

    def of_run(self, what: str, **query: str) -> Any:
        """Return an answer about the first run."""
        return self("/".join(filter(None, ["runs", self.ids[0], what])), **query)


def column(answer: dict[str, Any], name: str, epoch: int | None = None) -> list[float | None]:
    """One column of a trajectory, with its runs of equal values expanded."""
    (found,) = [each for each in answer["columns"] if (each["id"], each["epoch"]) == (name, epoch)]
    packed = found["column"]
    if "values" in packed:
        return list(packed["values"])
    values: list[float | None] = [None] * packed["n"]
    for first, value in packed["runs"]:
        values[first:] = [value] * (packed["n"] - first)
    return values
