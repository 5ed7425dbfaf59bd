"""Pages name tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_gateway_s_page_names_tests_that_are_there() -> None:
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs/explain/gateway.md").read_text())
    files = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("plugins/*/tests/**/test_*.py")]
    there = {
        name for file in files for name in re.findall(r"^ *(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    assert len(named) > 40
    assert set(named) <= there
