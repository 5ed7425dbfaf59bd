"""`math` against a table of 400 right answers that was made by hand, with both parsers of math-verify."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import answer_table
import pytest
from answer_table import STYLES, find_mistakes, read_rows
from programs import skip_without_package

from rllm.builtin.tasks.math_reward import check_key

NEWEST_ANTLR = Path(sys.prefix) / "newest-antlr"


def test_the_table_is_complete() -> None:
    rows = list(read_rows())
    assert len(rows) == 400
    assert {len(row.right) for row in rows} == {len(STYLES)}
    assert all(len(row.wrong) >= 3 for row in rows)


@pytest.mark.parametrize("key", [row.key for row in read_rows()])
def test_each_key_accepts_itself(key: str) -> None:
    check_key(key)


@pytest.mark.long
def test_table_agrees_without_false_positives() -> None:
    mistakes, count = find_mistakes()
    rights = sum(len(row.right) for row in read_rows())
    assert [each for each in mistakes if not each[3]] == []
    assert len(mistakes) <= 0.005 * rights, mistakes
    assert count > rights


@pytest.mark.long
def test_both_parsers_decide_the_same() -> None:
    """math-verify reads some text differently with ANTLR 4.13, so it receives no such text."""
    if not NEWEST_ANTLR.exists():
        skip_without_package("antlr4-python3-runtime==4.13.2", "`make install` installs it")
    found = {}
    for path in ("", str(NEWEST_ANTLR)):
        command = [sys.executable, answer_table.__file__]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
        )
        result = json.loads(done.stdout)
        found[result["antlr"]] = result["mistakes"]
    assert list(found) == ["4.9.3", "4.13.2"]
    assert found["4.9.3"] == found["4.13.2"]
