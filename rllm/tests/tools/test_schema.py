"""Typed functions as tools: their schema, and arguments checked against it."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from expecting import expect_error
from pydantic import BaseModel, ValidationError

from rllm.tools.schema import Arguments, tool_schema
from rllm_core.errors import ConfigError


def add(a: int, b: int = 2) -> int:
    """Adds two whole numbers.

    Exactly.

    Args:
        a: the first one
        b: the second one,
            which may be left out

    Returns:
        their sum
    """
    return a + b


def search(query: str, limit: int | None, tags: list[str], exact: bool = False) -> str:
    """Searches.

    Args:
        query: what to look for
        limit: how many at most
        tags: only these
        exact: whether words must be whole
    """
    return query


def draw(shape: Literal["circle", "square"], size: float, options: dict[str, int], place: int | str) -> None:
    """Draws.

    Args:
        shape: what
        size: how large
        options: more
        place: where
    """


def now() -> str:
    """Says the time."""
    return ""


def ragged(table: list[list[float]], data: Any, extra: dict) -> None:  # type: ignore[type-arg]
    """Takes what is nested.

    Args:
        table: rows
        data: anything
        extra: names and values
    """


@pytest.mark.parametrize("function", [add, search, draw, now, ragged])
def test_the_schema_is_the_one_that_transformers_writes(function: Any) -> None:
    utils = pytest.importorskip("transformers.utils")
    reference = utils.get_json_schema(function)
    reference["function"].pop("return", None)
    assert tool_schema(function.__name__, Arguments(function, function.__name__)) == reference


def test_methods_objects_and_bare_functions_have_schemas() -> None:
    class Adder:
        def add(self, a: int) -> int:
            return a

        def __call__(self, b: int) -> int:
            return b

    def bare(a: int, b: str) -> None: ...

    assert [*Arguments(Adder().add, "add").parameters["properties"]] == ["a"]
    assert [*Arguments(Adder(), "Adder").parameters["properties"]] == ["b"]
    schema = tool_schema("bare", Arguments(bare, "bare"))["function"]
    assert schema["description"] == ""
    assert schema["parameters"]["properties"] == {"a": {"type": "integer"}, "b": {"type": "string"}}


def test_models_are_described_where_they_are_named() -> None:
    class Place(BaseModel):
        x: int

    def go(place: Place) -> None: ...

    go.__annotations__["place"] = Place
    arguments = Arguments(go, "go")
    assert arguments.parameters["properties"]["place"] == {"$ref": "#/$defs/Place"}
    assert arguments.parameters["$defs"]["Place"]["properties"]["x"]["type"] == "integer"
    assert arguments.read({"place": {"x": 3}}) == {"place": Place(x=3)}


def test_names_that_models_of_pydantic_have_are_free() -> None:
    def keep(schema: str, copy: int, model_config: bool, _hidden: int) -> None: ...

    given = {"schema": "s", "copy": 1, "model_config": True, "_hidden": 2}
    assert Arguments(keep, "keep").read(given) == given


@pytest.mark.parametrize("given", [{}, {"a": "one"}, {"a": 1, "c": 2}, {"a": None}])
def test_arguments_that_do_not_fit_are_refused(given: dict[str, Any]) -> None:
    assert Arguments(add, "add").read({"a": "1"}) == {"a": 1}
    with pytest.raises(ValidationError):
        Arguments(add, "add").read(given)


def _untyped(a, b: int) -> None: ...  # type: ignore[no-untyped-def]


def _many(*numbers: int) -> None: ...


def _any_names(**numbers: int) -> None: ...


def _by_place(a: int, /) -> None: ...


def _of_a_class(a: socketlike) -> None: ...  # type: ignore[name-defined]  # noqa: F821


class _Opaque:
    pass


def _opaque(a: _Opaque) -> None: ...


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (_untyped, ("bad-tool", "'a'", "'f'")),
        (_many, ("bad-tool",)),
        (_any_names, ("bad-tool",)),
        (_by_place, ("bad-tool",)),
        (_of_a_class, ("bad-tool", "'socketlike'")),
        (_opaque, ("bad-tool",)),
    ],
)
def test_functions_that_no_model_can_call_are_refused(function: Any, problem: tuple[str, ...]) -> None:
    with expect_error(ConfigError, *problem, "def add(a: int, b: int)"):
        Arguments(function, "f")
