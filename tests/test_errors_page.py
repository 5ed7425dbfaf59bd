"""docs/reference/errors.md is the snapshot of all error messages, and every error in the source has a code."""

from __future__ import annotations

import ast
from functools import cache

import pytest
from errors_page import CODE, ErrorCall, error_calls, errors_page
from workspace import ROOT

PAGE = ROOT / "docs" / "reference" / "errors.md"


@cache
def read_error_calls() -> list[ErrorCall]:
    """Return every call that makes an error. Read once, because it takes seconds."""
    return list(error_calls())


page = cache(errors_page)


@pytest.mark.long
def test_page_equals_source() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "docs/reference/errors.md is stale: run `make docs`"


@pytest.mark.long
def test_every_error_has_literal_code() -> None:
    without = [f"{each.module}: {ast.unparse(each.call)}" for each in read_error_calls() if not _has_code(each.call)]
    assert without == []


def _has_code(call: ast.Call) -> bool:
    if any(each.arg is None for each in call.keywords):
        return True  # The parts of the error come from a different process.
    codes = [each.value for each in call.keywords if each.arg == "code"] or call.args[:1]
    return len(codes) == 1 and _is_code(codes[0])


def _is_code(node: ast.expr) -> bool:
    """True for a literal, and for the code of another error."""
    if isinstance(node, ast.IfExp):
        return _is_code(node.body) and _is_code(node.orelse)
    if isinstance(node, ast.Constant):
        return CODE.fullmatch(str(node.value)) is not None
    return isinstance(node, ast.Starred) or getattr(node, "attr", getattr(node, "id", "")) == "code"


def test_codes_are_few_enough_to_search_for() -> None:
    codes = {code for each in read_error_calls() for code in each.texts(0, "code") if CODE.fullmatch(code)}
    assert 100 < len(codes) < 350


@pytest.mark.long
@pytest.mark.parametrize(
    "row",
    [
        "| `file-not-found` | ConfigError | There is no configuration file `‹path›`. | Paths start at ‹cwd›. "
        "To write a file with all values, run `rllm config show > ‹path›`. |",
        "| `unknown-plugin` | PluginError | There is no ‹kind› named ‹name›. |",
        "| `no-training-tasks` | refused | There are no training tasks: ‹plan› has none. "
        "| Add a task to it, or choose other tasks with --data FILE. |",
        "| `deprecated-plugin` | Finding | deprecated: ‹entry plugin deprecated› | choose another one in new runs |",
    ],
)
def test_page_has_class_message_and_hint(row: str) -> None:
    assert row in page()
