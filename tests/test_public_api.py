"""Public names, signatures and fields are those of docs/reference/public-api.txt."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import public_api
import pytest
from expecting import check_values
from pydantic import BaseModel

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "reference" / "public-api.txt"


def changes(kept: str, now: str) -> str:
    """Return the differences and their remedy. Empty if there are none."""
    before, after = kept.splitlines(), now.splitlines()
    gone = [f"  - {line}" for line in before if line not in set(after)]
    new = [f"  + {line}" for line in after if line not in set(before)]
    if not gone and not new:
        return ""
    to_do = ["To accept: run `make docs` and say it in CHANGELOG.md."]
    if gone:
        to_do.append(
            "A line with - breaks programs and plugins: docs/contributing/releasing.md says how to deprecate a name."
        )
    return "\n".join(["The public API is another one.", *gone, *new, *to_do])


def test_the_public_api_changes_on_purpose_only() -> None:
    difference = changes(KEPT.read_text(encoding="utf-8"), public_api.text())
    assert not difference, difference


def test_other_installed_packages_do_not_change_it() -> None:
    printed = subprocess.run(
        [sys.executable, "-X", "utf8", str(ROOT / "docs" / "generate" / "public_api.py")],
        env={"RLLM_BLOCK_PLUGINS": "*", "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
    )
    assert printed.stderr == ""
    assert printed.stdout == public_api.text()


def test_hints_explain_lost_and_new_lines() -> None:
    assert changes("a\nb\n", "a\nb\n") == ""
    _, added, remedy = changes("a\n", "a\nb\n").splitlines()
    assert added == "  + b"
    check_values(remedy, "`make docs`", "CHANGELOG.md")
    assert changes("a: int\n", "a: str\n").splitlines()[1:3] == ["  - a: int", "  + a: str"]
    assert "docs/contributing/releasing.md" in changes("a: int\n", "a: str\n")


@dataclass(frozen=True, kw_only=True)
class Record:
    name: str
    names: frozenset[str] = frozenset({"b", "a"})


class Options(BaseModel):
    size: int = 3


class Level(Enum):
    LOW = "low"


class Plain:
    width: int

    def __init__(self, width: int = 1) -> None:
        self.width = width

    @property
    def area(self) -> int:
        return self.width**2

    async def close(self, *, within: float = 1.0) -> None: ...

    def _hidden(self) -> None: ...


@pytest.mark.parametrize(
    ("owner", "lines"),
    [
        (Record, ["name: str", "names: frozenset[str] = {'a', 'b'}"]),
        (Options, ["size: int = 3"]),
        (Level, ["LOW = 'low'"]),
        (
            Plain,
            [
                "width: int",
                "__init__: (self, width: int = 1) -> None",
                "area: property(self) -> int",
                "close: async (self, *, within: float = 1.0) -> None",
            ],
        ),
    ],
)
def test_fields_defaults_and_signatures_are_in_the_text(owner: type, lines: list[str]) -> None:
    assert list(public_api._members(owner)) == lines
