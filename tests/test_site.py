"""The documentation site: every page is in its navigation, and the check of built pages finds faults.

`make site` builds it. These tests need no generator.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
from check_pages import problems_of
from navigation import NAVIGATION
from outside import named_outside
from pictures import DIRECTORY, PICTURES
from workspace import ROOT

DOCS = ROOT / "docs"
NOT_PAGES = {"generate", "site"}
QUESTIONS = {
    "How do I train my model on my data?": {"how-to/own-data.md", "how-to/real-models.md"},
    "How do I find the meaning of a key?": {"reference/config.md"},
    "How do I write a plugin?": {"how-to/plugin.md"},
    "How do I find the meaning of an error?": {"reference/errors.md"},
}


def all_pages() -> set[str]:
    files = (file.relative_to(DOCS) for file in DOCS.rglob("*.md"))
    return {str(file.with_suffix("")) for file in files if file.parts[0] not in NOT_PAGES}


def test_every_page_is_in_the_navigation_once() -> None:
    pages = all_pages()
    named = []
    for page, captions in NAVIGATION.items():
        directory = page.rpartition("/")[0]
        for entry in (entry for entries in captions.values() for entry in entries):
            pattern = f"{directory}/{entry}" if directory else entry
            fitting = [name for name in pages if fnmatch(name, pattern)]
            assert fitting, f"{page}: there is no page {pattern}"
            named += fitting
    assert sorted(named) == sorted(pages - {"README"})


def test_first_page_lists_every_top_page() -> None:
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    on_top = [entry for entries in NAVIGATION["README"].values() for entry in entries]
    assert [entry for entry in on_top if f"]({entry}.md)" not in text] == []


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_first_page_answers_the_question(question: str) -> None:
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    (answer,) = re.findall(rf"^\| {re.escape(question)} \| (.*) \|$", text, re.MULTILINE)
    assert set(re.findall(r"\]\(([^)]*)\)", answer)) >= QUESTIONS[question]


@pytest.mark.parametrize(
    ("page", "text", "shown"),
    [
        ("README", "[Examples](../examples/README.md#opo): five", "Examples (`examples/README.md`): five"),
        ("how-to/tools", "[x](../../examples/README.md)", "x (`examples/README.md`)"),
        ("how-to/tools", "[x](../../examples/first_run.ipynb)", "x (`examples/first_run.ipynb`)"),
        ("how-to/tools", "[x](../reference/config.md#a)", "[x](../reference/config.md#a)"),
        ("how-to/tools", "[x](train.md)", "[x](train.md)"),
    ],
)
def test_link_to_outside_becomes_a_name(page: str, text: str, shown: str) -> None:
    assert named_outside(page, text) == shown


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_the_one_drawn(name: str) -> None:
    drawn = PICTURES[name]()
    assert (DIRECTORY / name).read_text(encoding="utf-8") == drawn, f"docs/explain/{name} is stale: run `make docs`"
    assert "prefers-color-scheme:dark" in drawn


def site(directory: Path, body: str) -> list[str]:
    """Return the problems of a site with two pages."""
    (directory / "index.html").write_text(f"<html><head></head><body>{body}</body></html>")
    (directory / "other.html").write_text('<h1 id="there">Other</h1>')
    return list(problems_of(directory))


@pytest.mark.parametrize(
    "body",
    [
        '<a href="other.html">x</a>',
        '<a href="other.html#there">x</a>',
        '<a href="https://example.org">a link is no request</a>',
        '<img src="data:image/png;base64,AA==">',
    ],
)
def test_a_page_without_a_fault_has_no_problem(body: str, tmp_path: Path) -> None:
    assert site(tmp_path, body) == []


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ('<script src="https://cdn.example.org/a.js"></script>', "index.html loads https://cdn.example.org/a.js"),
        ('<link rel="stylesheet" href="//fonts.example.org/a">', "index.html loads //fonts.example.org/a"),
        ('<img src="gone.png">', "index.html leads to gone.png"),
        ('<a href="gone.html">x</a>', "index.html leads to gone.html"),
        ('<a href="other.html#gone">x</a>', "index.html leads to other.html#gone"),
    ],
)
def test_foreign_request_and_dead_link_are_problems(body: str, place: str, tmp_path: Path) -> None:
    (problem,) = site(tmp_path, body)
    assert problem.startswith(place)


def test_style_that_loads_from_elsewhere_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text('@import "https://fonts.example.org/a.css";')
    assert site(tmp_path, "") == ["a.css loads https://fonts.example.org/a.css"]
