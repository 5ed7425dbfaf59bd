"""The page on additions lists exactly the source files that name each example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "contributing" / "add.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^## (.+)\nExample: (.+)\n\n((?:- .+\n)+)", PAGE, re.MULTILINE)
SOURCES = (
    *(f"{place}/{path}" for place in ("*", "plugins/*") for path in ("src/**/*.py", "src/**/*.pyi", "pyproject.toml")),
)


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    files = [ROOT / "Makefile", *(file for pattern in SOURCES for file in ROOT.glob(pattern))]
    return {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}


@pytest.mark.parametrize(("title", "examples", "lines"), SECTIONS, ids=[title for title, *_ in SECTIONS])
def test_list_has_the_files_of_its_example(title: str, examples: str, lines: str, sources: dict[str, str]) -> None:
    words = "|".join(map(re.escape, re.findall(r"`(.+?)`", examples)))
    named = re.compile(rf"(?<!\w)(?:{words})(?!\w)")
    assert set(re.findall(r"^- `(.+?)`: ", lines, re.MULTILINE)) == {
        name for name, text in sources.items() if named.search(text)
    }


def test_every_named_path_exists() -> None:
    assert [path for path in re.findall(r"`([\w/]+/[\w./]+)`", PAGE) if not (ROOT / path).exists()] == []
