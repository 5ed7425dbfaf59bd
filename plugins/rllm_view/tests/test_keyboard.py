"""Everything without a mouse."""

from __future__ import annotations

import pytest

from .addresses import of_episode, of_run
from .made_runs import Made
from .visiting import MadeRun, Visit


def press(visit: Visit, *keys: str) -> None:
    for key in keys:
        visit.page.keyboard.press(key)


def wait_for(visit: Visit, heading: str) -> None:
    visit.page.locator("main h1").filter(has_text=heading).wait_for()


@pytest.mark.long
def test_keys_lead_from_a_run_to_a_token(visit: Visit, made: MadeRun) -> None:
    _, run = made()
    visit.open(of_run(run), "/run")

    press(visit, "]")
    wait_for(visit, "Step 2")
    press(visit, "[")
    wait_for(visit, "Step 1")
    press(visit, "j", "Enter")
    wait_for(visit, "task-0:agent")
    press(visit, "j", "Enter")
    wait_for(visit, "1.0:task-0:0/0")
    press(visit, "n")
    visit.page.get_by_role("heading", name="Token 10").wait_for()
    assert visit.page.url.endswith("#t10")


@pytest.mark.long
def test_keys_go_through_trajectories_and_groups(visit: Visit, made: MadeRun) -> None:
    _, run = made()
    visit.open(of_episode(run, 1, "1.0:task-0:0/0"), "1.0:task-0:0/0")

    for key, expected in {
        "j": "1.0:task-0:1/0",
        "k": "1.0:task-0:0/0",
        "l": "1.0:task-1:0/0",
        "h": "1.0:task-0:0/0",
    }.items():
        press(visit, key)
        wait_for(visit, expected)


@pytest.mark.long
def test_keys_go_through_tokens_by_strength_and_by_place(visit: Visit, made: MadeRun) -> None:
    _, run = made()
    visit.open(of_episode(run, 1, "1.0:task-0:0/0"), "1.0:task-0:0/0")

    # Place 11 is clipped: 10, 9, 8 are the strongest.
    for key, token in [("n", 10), ("n", 9), ("p", 10), ("ArrowRight", 11), ("ArrowLeft", 10)]:
        press(visit, key)
        visit.page.get_by_role("heading", name=f"Token {token}").wait_for()


@pytest.mark.long
def test_digits_choose_what_colors_tokens(visit: Visit, made: MadeRun) -> None:
    _, run = made()
    page = visit.open(of_episode(run, 1, "1.0:task-0:0/0"), "1.0:task-0:0/0")
    last = page.locator('[data-t="11"]')

    found = {}
    for key in "1234567":
        press(visit, key)
        found[key] = last.get_attribute("class")

    assert found == {"1": "seq0", "2": "pos4", "3": "seq4", "4": "seq0", "5": "seq4", "6": "clip", "7": "seq4"}
    assert page.locator('[data-overlay="weight"]').get_attribute("aria-pressed") == "true"


@pytest.mark.long
def test_values_of_a_chart_are_read_by_arrows(visit: Visit, made: MadeRun) -> None:
    _, run = made()
    page = visit.open(of_run(run), "/run")
    page.locator('[data-panel="reward"] svg[role]').focus()

    press(visit, "ArrowLeft")

    assert page.locator("#said").inner_text() == "step 1: reward/agent/mean 0.26"
    press(visit, "Enter")
    wait_for(visit, "Step 1")


@pytest.mark.long
def test_help_names_the_keys_of_the_page(visit: Visit, made: MadeRun) -> None:
    _, run = made(Made(steps=1))
    page = visit.open(of_episode(run, 0, "0.0:task-0:0/0"), "0.0:task-0:0/0")

    press(visit, "?")

    keys = page.locator("dialog kbd").all_inner_texts()
    assert {"j", "k", "h", "l", "[", "]", "n", "p", *"1234567"} <= set(keys)
    press(visit, "Escape")
    assert page.locator("dialog").is_hidden()


@pytest.mark.long
def test_letters_in_a_filter_are_letters(visit: Visit, made: MadeRun) -> None:
    _, run = made()
    page = visit.open(of_run(run, "rollouts"), "Trajectories")

    press(visit, "/")
    page.keyboard.type("gjk")

    assert page.locator('[name="text"]').input_value() == "gjk"
