"""Fields and array elements of JSON text, compared with `json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rllm_record.interchange.json_files import FIRST_BYTES, JsonText, first_object

from .made_episodes import json_values

objects = st.dictionaries(st.text(max_size=3), json_values, max_size=4)
indents = st.sampled_from([None, 2])


@given(made=objects, values=st.lists(json_values, max_size=4), indent=indents)
def test_fields_and_items_equal_those_of_json(made: dict[str, Any], values: list[Any], indent: int | None) -> None:
    text = JsonText(json.dumps(made | {"the items": values}, indent=indent))
    assert [key for key, _ in text.fields()] == [*made, "the items"]
    assert str({key: text.field(key) for key in made}) == str(made)
    assert str([*text.items("the items")]) == str(values)
    with pytest.raises(KeyError):
        text.field("a missing key")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a" 1}', '{"a": 1 "b": 2}', '{"a": 1', '{"a": nul}'])
def test_text_that_is_no_object_is_an_error(text: str) -> None:
    with pytest.raises((ValueError, IndexError)):
        list(JsonText(text).fields())


@given(made=objects, indent=indents)
def test_first_object_is_the_whole_small_object(
    tmp_path_factory: Any, made: dict[str, Any], indent: int | None
) -> None:
    path = tmp_path_factory.mktemp("files") / "file.json"
    path.write_text(json.dumps(made, indent=indent))
    assert str(first_object(path)) == str(made)


def test_first_object_has_no_value_that_ends_later(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps({"a": 1, "b": "x" * FIRST_BYTES, "c": 2}))
    assert first_object(path) == {"a": 1, "b": None}
