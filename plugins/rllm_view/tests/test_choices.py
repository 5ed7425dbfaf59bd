"""Choices on a page, which its address stores, and keys."""

from __future__ import annotations

import math
from typing import Any

import pytest

from .addresses import of_episode, of_run
from .made_runs import RunShape
from .test_pages import UID
from .visiting import MadeRun, Visit

pytestmark = pytest.mark.long

CHOSEN = '[data-panel="metric time/step"]'
HEADS = "main th[aria-sort]"


def curve_heights(page: Any, panel: str, curve: str = "path.curve:not(.raw)") -> list[float]:
    """Heights of the points of a curve, from the top of the picture."""
    path: str = page.locator(f"{panel} svg[role] {curve}").first.get_attribute("d")
    return [float(point.split(" ")[1]) for point in path[1:].split("L")]


def column(page: Any, number: int) -> list[str]:
    found: list[str] = page.locator(f"main tbody tr td:nth-child({number})").all_inner_texts()
    return found


def test_metrics_any_is_found_and_kept_in_address(visit: Visit, shared_run: MadeRun) -> None:
    _, run = shared_run()
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


def test_metrics_smoothed_curve_is_a_moving_average(visit: Visit, shared_run: MadeRun) -> None:
    _, run = shared_run()
    page = visit.open(of_run(run) + "?metrics=actor/entropy&smooth=0.5", "/run")
    panel = '[data-panel="metric actor/entropy"]'

    # Values 2, 1.9 and 1.8: averages with weights 1/2, 1/4, … that add up to 1.
    low, high = 1.8, 2.0
    second, third = (0.5 * 2.0 + 1.9) / 1.5, (0.25 * 2.0 + 0.5 * 1.9 + 1.8) / 1.75
    expected = [168 - 160 * (value - low) / (high - low) for value in (2.0, second, third)]
    assert all(abs(a - b) < 0.06 for a, b in zip(curve_heights(page, panel), expected, strict=True))
    assert curve_heights(page, panel, "path.raw") == [8.0, 88.0, 168.0]
    assert f"{third:.3g} (raw 1.8)" in page.locator(panel).inner_text()

    page.locator('[name="smooth"]').fill("0")
    page.locator('[name="smooth"]').dispatch_event("change")
    assert page.locator(f"{panel} path.raw").count() == 0
    assert "smooth" not in page.url


def test_metrics_log_axis_leaves_values_below_zero(visit: Visit, shared_run: MadeRun) -> None:
    directory, run = shared_run("logarithmic", RunShape(steps=1))
    with (directory / "metrics.jsonl").open("a") as file:
        file.writelines(
            f'{{"step": {step}, "mine": {value}}}\n' for step, value in enumerate([1.0, 1000.0, 10.0, -1.0])
        )
    page = visit.open(of_run(run) + "?metrics=mine", "/logarithmic")
    panel = '[data-panel="metric mine"]'

    page.get_by_label("log axis").check()

    assert page.url.endswith("&log=1")
    heights = curve_heights(page, panel)
    assert all(math.isclose(a, b, abs_tol=0.1) for a, b in zip(heights, [168, 8, 168 - 160 / 3], strict=True))
    assert "1 value of 0 or less" in page.locator(panel).inner_text()
    assert {"1", "10", "100", "1000"} <= set(page.locator(f"{panel} svg[role] text").all_text_contents())


def test_list_header_sorts_and_address_keeps_order(visit: Visit, shared_run: MadeRun) -> None:
    _, run = shared_run("eleven members", RunShape(steps=1, groups=2, members=11))
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


def test_list_is_filtered_by_name_and_text(visit: Visit, shared_run: MadeRun) -> None:
    (_, run), (_, outcomes) = shared_run(), shared_run("outcomes", RunShape(content="outcomes"))
    page = visit.open(of_run(run, "rollouts"), "Trajectories")

    visit.press("/")
    page.keyboard.type("TASK-1:3")
    assert page.locator('[name="text"]').input_value() == "TASK-1:3"
    page.get_by_text("find", exact=True).click()
    page.get_by_text("1 to 3 of 3").wait_for()
    page.locator('[name="text"]').fill("")
    page.locator('[name="phrase"]').fill("QUESTION 1")
    page.get_by_text("find", exact=True).click()
    page.get_by_text("1 to 24 of 24").wait_for()
    page.get_by_text("Searched the text of 3 steps.").wait_for()
    assert page.url.endswith("rollouts?phrase=QUESTION%201")

    visit.clear({"width": 1280, "height": 800})
    visit.open(of_run(outcomes, "rollouts"), "Trajectories")
    page.get_by_text("1 to 24 of 24").wait_for()
    assert page.locator('[name="text"]').is_visible()
    assert page.locator('[name="phrase"]').is_hidden()


def test_digits_choose_what_colors_tokens(visit: Visit, shared_run: MadeRun) -> None:
    _, run = shared_run()
    page = visit.open(of_episode(run, 1, UID), UID)
    last = page.locator('[data-t="11"]')

    found = {}
    for key in "1234567":
        visit.press(key)
        found[key] = last.get_attribute("class")

    assert found == {"1": "seq0", "2": "pos4", "3": "seq4", "4": "seq0", "5": "seq4", "6": "clip", "7": "seq4"}
    assert page.locator('[data-overlay="weight"]').get_attribute("aria-pressed") == "true"
    visit.press("?")
    keys = page.locator("dialog kbd").all_inner_texts()
    assert {"j", "k", "h", "l", "[", "]", "n", "p", *"1234567"} <= set(keys)
    visit.press("Escape")
    assert page.locator("dialog").is_hidden()


def test_values_of_a_chart_are_read_by_arrows(visit: Visit, shared_run: MadeRun) -> None:
    _, run = shared_run()
    page = visit.open(of_run(run), "/run")
    page.locator('[data-panel="reward"] svg[role]').focus()

    visit.press("ArrowLeft")

    assert page.locator("#said").inner_text() == "step 1: reward/agent/mean 0.26"
    visit.press("Enter")
    visit.wait_for("Step 1")
