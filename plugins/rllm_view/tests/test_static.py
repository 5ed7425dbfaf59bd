"""One file that contains the pages and their answers, the tracker that writes it, and keys that lead through it."""

from __future__ import annotations

import base64
import gzip
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from expecting import expect_error
from recorded_episodes import episodes_of, record_rollouts

from rllm.runs.run_directory import RunDirectory
from rllm.runs.run_status import record_status
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.errors import ConfigError
from rllm_core.schema.run_sections import TrainerSection
from rllm_record.interchange.formats import write_file
from rllm_record.run_files import REPORT
from rllm_view.episode_files import as_runs
from rllm_view.report import ReportTracker
from rllm_view.static import join_modules, write_page

from .addresses import of_run
from .made_runs import RunShape, make_run
from .test_choices import CHOSEN, column
from .test_pages import CHARACTERS, ELEMENTS, FIELDS, SCRIPT, UID
from .visiting import MadeRun, Visit

Open = Callable[[Path], Visit]


def read_data(page: Path) -> dict[str, Any]:
    """The answers in a page."""
    (data,) = re.findall(r'<script id="copy"[^>]*>([^<]*)</script>', page.read_text())
    found: dict[str, Any] = orjson.loads(gzip.decompress(base64.b64decode(data)))
    return found


def test_copy_has_whole_groups_and_reproducible_bytes(finished_run: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.html", tmp_path / "second.html"
    for page in (first, second):
        write_page([finished_run], page, episodes=11)

    (found,) = read_data(first)["runs"].values()
    assert {step: len(uids) for step, uids in found["episode"].items()} == {"2": 8}
    assert {step: list(groups) for step, groups in found["group"].items()} == {"2": ["task-0:agent", "task-1:agent"]}
    assert len(found["rows"]) == 24
    assert list(found["step"]) == ["0", "1", "2"]
    assert first.read_bytes() == second.read_bytes()


def test_copy_of_long_run_has_latest_steps(finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllm_view.static.STEPS", 2)
    write_page([finished_run], tmp_path / "run.html", episodes=0)

    (found,) = read_data(tmp_path / "run.html")["runs"].values()
    assert [each["step"] for each in found["steps"]["steps"]] == [1, 2]
    assert (found["steps"]["indexed"], found["steps"]["recorded"]) == (2, 3)
    assert {row["step"] for row in found["rows"]} == {1, 2}


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


@pytest.mark.smoke
def test_keys_lead_from_a_run_to_its_tokens(visit: Visit, shared_run: MadeRun) -> None:
    _, run = shared_run()
    page = visit.open(of_run(run), "/run")

    for keys, heading in [
        (["]"], "Step 2"),
        (["["], "Step 1"),
        (["j", "Enter"], "task-0:agent"),
        (["j", "Enter"], UID),
        (["j"], "1.0:task-0:1/0"),
        (["k"], UID),
        (["l"], "1.0:task-1:0/0"),
        (["h"], UID),
    ]:
        visit.press(*keys)
        visit.wait_for(heading)
    # Place 11 is clipped: 10, 9, 8 are the strongest.
    for key, token in [("n", 10), ("n", 9), ("p", 10), ("ArrowRight", 11), ("ArrowLeft", 10)]:
        visit.press(key)
        page.get_by_role("heading", name=f"Token {token}").wait_for()
        assert page.url.endswith(f"#t{token}")


@pytest.mark.smoke
def test_conversation_is_first_without_a_vocabulary(open_page: Open, tmp_path: Path) -> None:
    write_file(tmp_path / "file.jsonl", record_rollouts(0, 0, episodes_of({"a": [1.0]})), "atif")
    with as_runs([tmp_path / "file.jsonl"]) as places:
        write_page(places, tmp_path / "page.html", episodes=1)
    page = open_page(tmp_path / "page.html").page
    page.get_by_text("all trajectories, by filters").click()
    page.locator("main td a").first.click()
    page.locator(".conversation").wait_for()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("c")
    page.locator("[data-t]").first.wait_for()


@pytest.mark.long
def test_copy_opens_without_a_server(open_page: Open, tmp_path: Path) -> None:
    run = make_run(tmp_path / "p" / "r", RunShape(groups=2, members=11))
    trainer = TrainerSection(output_dir=str(tmp_path), project_name="p", experiment_name="r")
    with closing(RunDirectory.open(trainer, resume=True)), record_status(run, lambda: False):
        write_page([run], tmp_path / "run.html", episodes=22)
    visit = open_page(tmp_path / "run.html")
    page = visit.page
    page.get_by_text("running when this copy was written").wait_for()
    id = page.url.rpartition("/")[2]

    assert page.locator("path.curve").count() > 9
    for keys, heading in [(["]"], "Step 2"), (["j", "Enter"], "task-0:agent"), (["j", "Enter"], "2.0:task-0:0/0")]:
        visit.press(*keys)
        visit.wait_for(heading)
    visit.press("n")
    page.get_by_role("heading", name="Token 10").wait_for()
    page.goto(f"{visit.url}#/run/{id}?metrics=time/step&smooth=0.5")
    page.locator(f"{CHOSEN} path.raw").wait_for(state="attached")
    page.goto(f"{visit.url}#/run/{id}/rollouts?text=TASK-1:3")
    page.get_by_text("1 to 3 of 3").wait_for()
    page.goto(f"{visit.url}#/run/{id}/rollouts?order=trajectory&phrase=ANSWER%201")
    page.get_by_text("1 to 22 of 22").wait_for()
    page.get_by_text("Searched the text of 22 trajectories that this copy contains.").wait_for()
    assert column(page, 11)[0] == "answer 1"
    assert column(page, 2)[9:12] == ["2.0:task-0:9/0", "2.0:task-0:10/0", "2.0:task-1:0/0"]
    assert visit.problems == []
    assert {url.partition("#")[0] for url in visit.requests} == {visit.url}


@pytest.mark.long
def test_copy_escapes_text_and_offers_no_search(open_page: Open, tmp_path: Path) -> None:
    hostile = ELEMENTS + SCRIPT + CHARACTERS
    run = make_run(tmp_path / "p" / "r", RunShape(steps=2, content="outcomes", texts=dict.fromkeys(FIELDS, hostile)))
    write_page([run], tmp_path / "run.html")
    visit = open_page(tmp_path / "run.html")

    visit.press("]")
    visit.page.get_by_text("Groups (").wait_for()
    assert "window.hacked" in visit.text()
    assert visit.page.evaluate("typeof window.hacked") == "undefined"
    visit.press("t")
    visit.page.get_by_text("1 to 8 of 8").wait_for()
    assert visit.page.locator('[name="phrase"]').is_hidden()
    assert visit.problems == []


STEP = {"train/weight_version": 1.0}


@pytest.fixture
def tracked_run(tmp_path: Path) -> TrackedRun:
    directory = make_run(tmp_path / "p" / "r", RunShape(steps=1))
    config = {"rllm": {"rollout": {"n": 8}, "trainer": {"seed": 1}}}
    origins = {"rllm.rollout.n": "recipe", "rllm.trainer.seed": "default"}
    return TrackedRun(directory=directory, project_name="p", experiment_name="r", config=config, origins=origins)


def test_finished_run_writes_pages_with_changed_values(tracked_run: TrackedRun) -> None:
    tracker = ReportTracker(tracked_run, NoParams())
    tracker.on_train_start(1, 0)
    tracker.close()

    (found,) = read_data(tracked_run.directory / REPORT)["runs"].values()
    assert found["overview"]["given"] == [{"key": "rllm.rollout.n", "value": "8", "origin": "recipe"}]
    assert len(found["episode"]["0"]) == 8


def test_pages_are_written_after_steps_that_double(tracked_run: TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[Path, int]] = []
    monkeypatch.setattr("rllm_view.report.write_page", lambda _, page, episodes, __: written.append((page, episodes)))
    tracker = ReportTracker(tracked_run, NoParams())
    tracker.on_train_start(9, 0)
    tracker.log(0, {"val/guess/pass@1": 0.5})  # A validation is no step.
    counts = []
    for step in range(9):
        tracker.log(step, STEP)
        counts.append(len(written))

    assert counts == [1, 2, 2, 3, 3, 3, 3, 4, 4]
    assert set(written) == {(tracked_run.directory / REPORT, 0)}


def test_run_that_never_started_keeps_the_old_report(tracked_run: TrackedRun) -> None:
    (tracked_run.directory / REPORT).write_text("of another run")

    ReportTracker(tracked_run, NoParams()).close()

    assert (tracked_run.directory / REPORT).read_text() == "of another run"
