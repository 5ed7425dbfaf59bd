"""Choices on a page, which its address stores: metrics, smoothing, axis, order, and search."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rllm_view.static import write_page

from .addresses import of_episode, of_run
from .made_runs import Made, make_run
from .visiting import MadeRun, Visit

CHOSEN = '[data-panel="metric time/step"]'
HEADS = "main th[aria-sort]"


def drawn(page: Any, panel: str, curve: str = "path.curve:not(.raw)") -> list[float]:
    """Heights of the points of a curve, from the top of the picture."""
    path: str = page.locator(f"{panel} svg[role] {curve}").first.get_attribute("d")
    return [float(point.split(" ")[1]) for point in path[1:].split("L")]


def column(page: Any, number: int) -> list[str]:
    found: list[str] = page.locator(f"main tbody tr td:nth-child({number})").all_inner_texts()
    return found


@pytest.mark.long
def test_metrics_any_is_found_and_kept_in_address(visit: Visit, made: MadeRun) -> None:
    _, run = made()
    page = visit.open(of_run(run), "/run")

    page.keyboard.press("m")
    page.keyboard.type("TIME st")
    page.keyboard.press("Enter")
    page.locator(CHOSEN).wait_for()
    assert page.url.endswith(f"{run}?metrics=time/step")
    assert page.locator(".choices label:visible").all_inner_texts() == [" time/step"]
    page.get_by_label("find a metric").fill("no such metric")
    page.get_by_text("No metric has this name.").wait_for()

    page.reload()
    page.locator(CHOSEN).wait_for()
    assert page.locator("figure").count() == 10
    assert "Choose metrics: 1 of 14" in visit.text()
    page.locator("summary", has_text="Choose metrics").click()
    page.get_by_text("standard charts only").click()
    page.locator(CHOSEN).wait_for(state="detached")
    assert page.url.endswith(run)


@pytest.mark.long
def test_metrics_smoothed_curve_is_a_moving_average(visit: Visit, made: MadeRun) -> None:
    _, run = made()
    page = visit.open(of_run(run) + "?metrics=actor/entropy&smooth=0.5", "/run")
    panel = '[data-panel="metric actor/entropy"]'

    # Values 2, 1.9 and 1.8: averages with weights 1/2, 1/4, … that add up to 1.
    low, high = 1.8, 2.0
    second, third = (0.5 * 2.0 + 1.9) / 1.5, (0.25 * 2.0 + 0.5 * 1.9 + 1.8) / 1.75
    expected = [168 - 160 * (value - low) / (high - low) for value in (2.0, second, third)]
    assert all(abs(a - b) < 0.06 for a, b in zip(drawn(page, panel), expected, strict=True))
    assert drawn(page, panel, "path.raw") == [8.0, 88.0, 168.0]
    assert f"{third:.3g} (raw 1.8)" in page.locator(panel).inner_text()

    page.locator('[name="smooth"]').fill("0")
    page.locator('[name="smooth"]').dispatch_event("change")
    assert page.locator(f"{panel} path.raw").count() == 0
    assert "smooth" not in page.url


@pytest.mark.long
def test_metrics_log_axis_leaves_values_below_zero(visit: Visit, made: MadeRun) -> None:
    directory, run = made(Made(steps=1))
    with (directory / "metrics.jsonl").open("a") as file:
        file.writelines(
            f'{{"step": {step}, "mine": {value}}}\n' for step, value in enumerate([1.0, 1000.0, 10.0, -1.0])
        )
    page = visit.open(of_run(run) + "?metrics=mine", "/run")
    panel = '[data-panel="metric mine"]'

    page.get_by_label("log axis").check()

    assert page.url.endswith("&log=1")
    heights = drawn(page, panel)
    assert all(math.isclose(a, b, abs_tol=0.1) for a, b in zip(heights, [168, 8, 168 - 160 / 3], strict=True))
    assert "1 value of 0 or less" in page.locator(panel).inner_text()
    assert {"1", "10", "100", "1000"} <= set(page.locator(f"{panel} svg[role] text").all_text_contents())


@pytest.mark.long
def test_compare_chosen_metric_has_a_curve_per_run(visit: Visit, made: MadeRun) -> None:
    (_, first), (_, second) = made(name="first"), made(name="second")
    page = visit.open(f"#/compare?runs={first},{second}&metrics=time/step", "Runs side by side")

    assert page.locator(f"{CHOSEN} .legend span").all_inner_texts() == ["1: time/step", "2: time/step"]
    staleness = page.locator('[data-panel="staleness"] .legend span').all_inner_texts()
    assert staleness == ["1: staleness/max", "1: staleness/mean", "2: staleness/max", "2: staleness/mean"]


@pytest.mark.long
def test_list_header_sorts_and_address_keeps_order(visit: Visit, made: MadeRun) -> None:
    _, run = made(Made(steps=1, groups=2, members=11))
    page = visit.open(of_run(run, "rollouts"), "Trajectories")
    assert page.locator(HEADS).count() == 10
    assert column(page, 2)[:11] == [f"0.0:task-0:{member}/0" for member in range(11)]

    page.locator('[data-order="trajectory"]').focus()
    page.keyboard.press("Enter")
    page.locator('th[aria-sort="ascending"]', has_text="trajectory").wait_for()
    page.keyboard.press("Enter")
    page.locator('th[aria-sort="descending"]', has_text="trajectory").wait_for()
    assert column(page, 2)[:2] == ["0.0:task-1:10/0", "0.0:task-1:9/0"]
    assert page.url.endswith("rollouts?order=trajectory&descending=true")

    page.reload()
    page.locator('th[aria-sort="descending"]', has_text="trajectory").wait_for()
    assert column(page, 2)[0] == "0.0:task-1:10/0"


@pytest.mark.long
def test_tables_of_runs_steps_and_groups_sort(visit: Visit, made: MadeRun) -> None:
    _, run = made(Made(groups=11))
    for address, heading, by, expected in [
        (of_run(run), "/run", "reward", ["0", "1", "2"]),
        (of_run(run, "step", 1), "Step 1", "task_id", [f"task-{task}:agent" for task in range(11)]),
        ("#/?order=steps", "Runs", "name", []),
    ]:
        page = visit.open(address, heading)
        page.locator(f'[data-order="{by}"]').click()
        table = page.locator("main table", has=page.locator(f'[data-order="{by}"]'))
        table.locator("th[aria-sort=ascending]").wait_for()
        assert f"order={by}" in page.url
        found = table.locator("tbody tr td:first-child").all_inner_texts()
        assert not expected or found == expected, address


@pytest.mark.long
def test_search_in_text_is_a_filter_of_the_list(visit: Visit, made: MadeRun) -> None:
    _, run = made()
    page = visit.open(of_run(run, "rollouts"), "Trajectories")

    page.locator('[name="phrase"]').fill("QUESTION 1")
    page.get_by_text("find", exact=True).click()

    page.get_by_text("1 to 24 of 24").wait_for()
    page.get_by_text("Searched the text of 3 steps.").wait_for()
    assert page.url.endswith("rollouts?phrase=QUESTION%201")


@pytest.mark.long
def test_search_without_recorded_text_has_no_control(visit: Visit, made: MadeRun) -> None:
    _, run = made(Made(content="outcomes"))
    page = visit.open(of_run(run, "rollouts"), "Trajectories")

    page.get_by_text("1 to 24 of 24").wait_for()
    assert page.locator('[name="text"]').is_visible()
    assert page.locator('[name="phrase"]').is_hidden()


@pytest.mark.long
def test_run_that_is_being_read_shows_so(visit: Visit, made: MadeRun) -> None:
    _, run = made()
    unread = {"steps": [], "indexed": 0, "recorded": 3}
    visit.page.route(f"**/api/runs/{run}/steps", lambda route: route.fulfill(json=unread))
    page = visit.open(of_run(run), "/run")

    page.get_by_text("Reading 3 steps …").wait_for()
    assert "No step" not in visit.text()


@pytest.mark.long
def test_run_without_record_has_no_recorded_step(visit: Visit, made: MadeRun) -> None:
    directory, run = made(Made(steps=0))
    assert not (directory / "record").exists()
    visit.open(of_run(run), "/run")

    assert "No step" in visit.text()


@pytest.mark.long
def test_token_panel_is_scrolled_by_keyboard(visit: Visit, made: MadeRun) -> None:
    _, run = made()
    page = visit.open(of_episode(run, 1, "1.0:task-0:0/0", 10), "1.0:task-0:0/0")
    page.set_viewport_size({"width": 1280, "height": 400})
    page.get_by_role("heading", name="Token 10").wait_for()

    page.locator(".tokens").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "ASIDE"
    page.keyboard.press("End")
    while not page.evaluate("document.querySelector('aside').scrollTop"):  # scrolling is smooth
        page.wait_for_timeout(20)


@pytest.mark.long
def test_copy_has_all_metrics_orders_and_search(chromium: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "p" / "r", Made(groups=2, members=11))
    write_page([run], tmp_path / "run.html", episodes=22)
    context = chromium.new_context(offline=True)
    visit = Visit(context.new_page(), (tmp_path / "run.html").as_uri())
    page = visit.page
    page.goto(visit.url)
    page.locator("main h1").wait_for()

    id = page.url.rpartition("/")[2]
    page.goto(f"{visit.url}#/run/{id}?metrics=time/step&smooth=0.5")
    page.locator(f"{CHOSEN} path.raw").wait_for(state="attached")
    page.goto(f"{visit.url}#/run/{id}/rollouts?order=trajectory&phrase=ANSWER%201")
    page.get_by_text("1 to 22 of 22").wait_for()
    page.get_by_text("Searched the text of 22 trajectories that this copy contains.").wait_for()
    assert column(page, 2)[9:12] == ["2.0:task-0:9/0", "2.0:task-0:10/0", "2.0:task-1:0/0"]
    assert visit.problems == []
    context.close()


@pytest.mark.long
def test_copy_without_text_has_no_search(chromium: Any, tmp_path: Path) -> None:
    write_page([make_run(tmp_path / "p" / "r", Made(content="outcomes"))], tmp_path / "run.html")
    context = chromium.new_context(offline=True)
    page = context.new_page()
    page.goto((tmp_path / "run.html").as_uri())
    page.locator("main h1").wait_for()

    page.keyboard.press("t")
    page.get_by_text("1 to 24 of 24").wait_for()
    assert page.locator('[name="phrase"]').is_hidden()
    context.close()
