"""One file that contains the pages and their answers."""

from __future__ import annotations

import base64
import gzip
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError
from rllm_view.static import join_modules, write_page

from .made_runs import Made, make_run
from .test_hostile_texts import CHARACTERS, ELEMENTS, FIELDS, SCRIPT
from .visiting import Visit


def read_data(page: Path) -> dict[str, Any]:
    """The answers in a page."""
    (data,) = re.findall(r'<script id="copy"[^>]*>([^<]*)</script>', page.read_text())
    found: dict[str, Any] = orjson.loads(gzip.decompress(base64.b64decode(data)))
    return found


@pytest.fixture
def opened(chromium: Any) -> Any:
    """Opens a file in a browser that has no network."""
    contexts = []

    def open_file(file: Path) -> Visit:
        context = chromium.new_context(viewport={"width": 1280, "height": 800}, offline=True)
        contexts.append(context)
        visit = Visit(context.new_page(), file.as_uri())
        visit.page.goto(visit.url)
        visit.page.locator("main h1").wait_for()
        return visit

    yield open_file
    for context in contexts:
        context.close()


@pytest.mark.long
def test_a_file_opens_without_a_server_and_goes_from_curves_to_a_token(run: Path, tmp_path: Path, opened: Any) -> None:
    write_page([run], tmp_path / "run.html")
    visit = opened(tmp_path / "run.html")
    page = visit.page

    assert page.locator("path.curve").count() > 9
    for keys, heading in [(["]"], "Step 2"), (["j", "Enter"], "task-0:agent"), (["j", "Enter"], "2.0:task-0:0/0")]:
        for key in keys:
            page.keyboard.press(key)
        page.locator("main h1").filter(has_text=heading).wait_for()
    page.keyboard.press("n")
    page.get_by_role("heading", name="Token 10").wait_for()
    page.goto(f"{visit.url}#/run/{page.url.split('/run/')[1].split('/')[0]}/rollouts?text=TASK-1:3")
    page.get_by_text("1 to 3 of 3").wait_for()

    assert visit.problems == []
    assert {url.partition("#")[0] for url in visit.requests} == {visit.url}


@pytest.mark.long
@pytest.mark.parametrize("hostile", [SCRIPT, ELEMENTS, CHARACTERS], ids=["script", "elements", "characters"])
def test_texts_in_a_file_stay_texts(tmp_path: Path, opened: Any, hostile: str) -> None:
    run = make_run(tmp_path / "p" / "r", Made(steps=1, texts=dict.fromkeys(FIELDS, hostile)))
    write_page([run], tmp_path / "run.html")
    visit = opened(tmp_path / "run.html")

    visit.page.keyboard.press("]")
    visit.page.get_by_text("Groups (").wait_for()

    assert "window.hacked" in visit.text()
    assert visit.page.evaluate("typeof window.hacked") == "undefined"
    assert visit.problems == []


def test_copy_contains_whole_groups_of_the_latest_steps(run: Path, tmp_path: Path) -> None:
    write_page([run], tmp_path / "run.html", episodes=11)

    (found,) = read_data(tmp_path / "run.html")["runs"].values()
    assert {step: len(uids) for step, uids in found["episode"].items()} == {"2": 8}
    assert {step: list(groups) for step, groups in found["group"].items()} == {"2": ["task-0:agent", "task-1:agent"]}
    assert len(found["rows"]) == 24
    assert list(found["step"]) == ["0", "1", "2"]


@pytest.mark.long
def test_copy_of_a_run_has_reproducible_bytes(run: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_page([run], tmp_path / name)

    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_damaged_step_is_skipped_and_reported(run: Path, tmp_path: Path) -> None:
    (run / "record" / "episodes" / "step_000001.parquet").write_bytes(b"PAR1")

    write_page([run], tmp_path / "run.html")

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
