"""docs/reference/errors.md is what the source says, and every message has its parts."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from error_source import Message, messages
from error_text import Scope, texts_of
from errors_page import GROUPS, errors_page
from workspace import ROOT

PAGE = ROOT / "docs" / "reference" / "errors.md"
found = cache(messages)
"""Read once, by the tests that need it: the whole source takes seconds."""


def test_the_page_in_the_repository_is_the_one_made_from_the_source() -> None:
    assert PAGE.read_text(encoding="utf-8") == errors_page(found()), (
        "docs/reference/errors.md is stale: run `make docs`"
    )


def test_every_group_has_messages() -> None:
    page = errors_page(found())
    empty = [
        heading for heading, _, _ in GROUPS if "\n- " not in page.partition(f"## {heading}\n")[2].partition("\n##")[0]
    ]
    assert empty == []


def test_a_module_that_no_group_has_is_named() -> None:
    with pytest.raises(KeyError, match="rllm_new"):
        errors_page([Message("rllm_new.module", "Something is wrong.", "")])


@pytest.mark.parametrize(
    "said",
    [
        "There is no configuration file `‹path›`.",
        "‹path› holds a run already.",
        "`‹name›` is not a key of ‹place› (`‹path›` from ‹origin›).",
        "`‹key›` is ‹value› (from ‹origin›), and nothing this run uses acts on it.",
    ],
)
def test_messages_that_everybody_meets_are_found(said: str) -> None:
    assert said in {message.text for message in found()}


def texts(source: str) -> list[str]:
    """What the last expression of a function may say."""
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    last = function.body[-1]
    assert isinstance(last, ast.Expr)
    return texts_of(last.value, Scope.of(function))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ('def f(): "plain"', ["plain"]),
        ('def f(path): f"no {path!r}"', ["no ‹path›"]),
        ('def f(run): f"no {run.the_folder}"', ["no ‹the folder›"]),
        ('def f(all): f"{len(all)} are"', ["‹number› are"]),
        ('def f(x): "one" if x else "two"', ["one", "two"]),
        ('def f(x): near(x) or f"Names: {x}."', ["Names: ‹x›."]),
        ('def f(x):\n hint = f"Do {x}."\n hint', ["Do ‹x›."]),
        ("def f(hint): hint", ["‹hint›"]),
    ],
)
def test_a_text_is_read_from_the_source(source: str, said: list[str]) -> None:
    assert texts(source) == said


def test_no_message_is_cut_by_what_it_fills_in() -> None:
    assert [message.text for message in found() if re.search(r"‹[^›]*‹|{self|\{[a-z_.]+\}", message.text)] == []
