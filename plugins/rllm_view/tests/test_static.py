"""One file that contains the pages and their answers."""

from __future__ import annotations

import base64
import gzip
import re
from pathlib import Path
from typing import Any

import orjson
from expecting import expect_error

from rllm_core.errors import ConfigError
from rllm_view.static import join_modules, write_page


def read_data(page: Path) -> dict[str, Any]:
    """The answers in a page."""
    (data,) = re.findall(r'<script id="copy"[^>]*>([^<]*)</script>', page.read_text())
    found: dict[str, Any] = orjson.loads(gzip.decompress(base64.b64decode(data)))
    return found


def test_copy_has_whole_groups_and_reproducible_bytes(finished: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.html", tmp_path / "second.html"
    for page in (first, second):
        write_page([finished], page, episodes=11)

    (found,) = read_data(first)["runs"].values()
    assert {step: len(uids) for step, uids in found["episode"].items()} == {"2": 8}
    assert {step: list(groups) for step, groups in found["group"].items()} == {"2": ["task-0:agent", "task-1:agent"]}
    assert len(found["rows"]) == 24
    assert list(found["step"]) == ["0", "1", "2"]
    assert first.read_bytes() == second.read_bytes()


def test_damaged_step_is_skipped_and_reported(run: Path, tmp_path: Path) -> None:
    (run / "record" / "episodes" / "step_000001.parquet").write_bytes(b"PAR1")

    write_page([run], tmp_path / "run.html", episodes=4)

    (found,) = read_data(tmp_path / "run.html")["runs"].values()
    assert list(found["step"]) == ["0", "2"]
    assert found["overview"]["problems"][0].startswith("Step 1:")


def test_directory_without_a_run_is_rejected(tmp_path: Path) -> None:
    with expect_error(ConfigError, "run-not-found"):
        write_page([tmp_path], tmp_path / "run.html")


def test_modules_share_no_top_level_name() -> None:
    declaration = r"^(?:async )?(?:function\*?|const|let|class) (\w+)"
    names = re.findall(declaration, join_modules(), re.MULTILINE)
    assert len(names) > 100
    assert sorted(names) == sorted(set(names))
    assert not re.findall(r"^(?:import|export)\b|</script", join_modules(), re.MULTILINE)
