"""Layouts of other libraries, and columns by name."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Read, write_lines, write_parquet

USER = {"role": "user", "content": "2 + 2?"}
ASSISTANT = {"role": "assistant", "content": "4"}
VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [USER],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"split": "train", "index": 0},
}
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "verl": (VERL, {"prompt": [USER], "answer": "4"}),
    "trl_with_a_completion": ({"prompt": "2 + 2?", "completion": " 4"}, {"prompt": "2 + 2?", "answer": " 4"}),
    "trl_as_chat": ({"prompt": [USER], "completion": [ASSISTANT]}, {"prompt": [USER], "answer": "4"}),
    "trl_with_a_solution": ({"prompt": [USER], "solution": "4"}, {"prompt": [USER], "answer": "4"}),
    "trl_with_a_prompt_alone": ({"prompt": "2 + 2?"}, {"prompt": "2 + 2?"}),
    "messages": ({"messages": [USER, ASSISTANT]}, {"prompt": [USER], "answer": "4"}),
    "messages_without_an_answer": ({"messages": [USER]}, {"prompt": [USER]}),
    "messages_beside_an_answer": ({"messages": [USER, ASSISTANT], "answer": "5"}, {"prompt": [USER], "answer": "5"}),
    "question_and_answer": ({"question": "2 + 2?", "answer": "4"}, {"prompt": "2 + 2?", "answer": "4"}),
    "problem_and_solution": ({"problem": "2 + 2?", "solution": "4"}, {"prompt": "2 + 2?", "answer": "4"}),
    "none_of_these": ({"a": 2, "b": 2}, {}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("write", [write_parquet, write_lines], ids=["rows.parquet", "rows.json"])
def test_layout_is_recognized_and_other_columns_are_kept(layout: str, write: Any, read: Read) -> None:
    row, shaped = LAYOUTS[layout]
    path = write("rows.parquet" if write is write_parquet else "rows.json", [row])
    assert read(path)[0].data == {"data_source": "rows", **row, **shaped}


@pytest.mark.parametrize(("name", "answer"), [("verl", "4"), ("trl", "5"), ("qa", "5")])
def test_a_named_layout_is_taken(name: str, answer: str, read: Read) -> None:
    path = write_parquet("rows.parquet", [VERL | {"question": "2 + 3?", "answer": "5"}])
    assert read(path, format=name)[0].data["answer"] == answer


def test_columns_give_our_names_and_keep_their_own(read: Read) -> None:
    path = write_parquet("rows.parquet", [{"text": "2 + 2?", "meta": {"gold": "4"}, "a.b": 1}])
    data = read(path, columns={"prompt": "text", "answer": "meta.gold", "level": "a.b"})[0].data
    assert data == {
        "prompt": "2 + 2?", "answer": "4", "level": 1, "text": "2 + 2?", "meta": {"gold": "4"}, "a.b": 1,
        "data_source": "rows",
    }  # fmt: skip


def test_columns_complete_or_replace_a_layout(read: Read) -> None:
    path = write_parquet("rows.parquet", [VERL | {"gold": "5"}])
    assert read(path, columns={"answer": "gold"})[0].data["answer"] == "5"
    path = write_parquet("rows.parquet", [{"q": "2 + 2?", "solution": "4"}])
    assert read(path, format="qa", columns={"question": "q"})[0].data["answer"] == "4"


def _call(**arguments: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}


def _tool(**properties: str) -> dict[str, Any]:
    shown = {name: {"type": kind} for name, kind in properties.items()}
    return {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": shown}}}


def test_chats_and_tools_lose_nulls_from_other_rows(read: Read) -> None:
    rows = [
        {"messages": [USER, _call(city="Oslo")], "tools": [_tool(city="string")], "about": {"place": "north"}},
        {"messages": [USER, _call(words=3), USER], "tools": [_tool(words="integer")], "about": {"year": 1905}},
        {"messages": [USER], "tools": [], "about": {}},
    ]
    found = [task.data for task in read(write_parquet("rows.parquet", rows), drop_columns=[])]
    for row, data in zip(rows, found, strict=True):
        assert {name: data[name] for name in ("messages", "tools")} == {
            name: row[name] for name in ("messages", "tools")
        }
    # A reward may read any field of other columns.
    assert found[0]["about"] == {"place": "north", "year": None}
