"""Layouts of other libraries, mapped to one shape: `prompt` and `answer`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]

PROMPTS = ("question", "problem", "query")
ANSWERS = ("answer", "solution", "ground_truth", "completion")


@dataclass(frozen=True)
class Layout:
    """How rows are laid out."""

    name: str
    needs: tuple[tuple[str, ...], ...]
    """Alternatives for each required column: the rows need at least one column of each tuple."""
    shape: Callable[[Row], dict[str, Any]]
    """Function from a row (JSON data) to its `prompt` and `answer`. A field that the row does not have is missing."""

    def lacks(self, columns: Collection[str]) -> list[str]:
        """Return the required columns that are missing, as text."""
        return [" or ".join(map(repr, names)) for names in self.needs if not set(names) & set(columns)]


def recognize(columns: Collection[str]) -> Layout | None:
    """Return the layout of rows with these columns. None if no layout fits."""
    return next((layout for layout in LAYOUTS.values() if not layout.lacks(columns)), None)


def _verl(row: Row) -> dict[str, Any]:
    made = {"prompt": row["prompt"]}
    reward_model = row["reward_model"]
    if isinstance(reward_model, Mapping) and "ground_truth" in reward_model:
        made["answer"] = reward_model["ground_truth"]
    return made


def _trl(row: Row) -> dict[str, Any]:
    return {"prompt": row["prompt"]} | _answer(row)


def _messages(row: Row) -> dict[str, Any]:
    """The last message is the answer where the assistant says it."""
    messages = row["messages"]
    if not _is_chat(messages) or messages[-1].get("role") != "assistant":
        return {"prompt": messages} | _answer(row)
    return {"prompt": messages[:-1], "answer": messages[-1].get("content")} | _answer(row)


def _question_and_answer(row: Row) -> dict[str, Any]:
    return {"prompt": next(row[name] for name in PROMPTS if name in row)} | _answer(row)


def _answer(row: Row) -> dict[str, Any]:
    """The first column with an answer. One in messages is what the assistant says last."""
    for name in ANSWERS:
        if name in row:
            said = row[name]
            return {"answer": said[-1].get("content") if _is_chat(said) else said}
    return {}


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) and "role" in each for each in value)
    )


LAYOUTS: Mapping[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout("verl", (("prompt",), ("reward_model",)), _verl),
        Layout("trl", (("prompt",),), _trl),
        Layout("messages", (("messages",),), _messages),
        Layout("qa", (PROMPTS,), _question_and_answer),
    )
}
"""By name, the most particular first."""
