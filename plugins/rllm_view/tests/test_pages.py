"""The content of every page."""

from __future__ import annotations

import pytest

from .addresses import of_episode, of_run
from .made_runs import Made, write_step
from .visiting import MadeRun, Visit

UID = "1.0:task-0:0/0"


@pytest.mark.long
def test_runs_are_listed_and_chosen_ones_compared(visit: Visit, made: MadeRun) -> None:
    (_, first), (_, second) = made(name="first"), made(name="second")
    page = visit.open("#/?", "Runs")

    for run in (first, second):
        page.locator(f'tr:has(a[href="#/run/{run}"]) input').check()
    page.get_by_text("compare 2 runs").click()

    page.get_by_text("Settings that differ").wait_for()
    assert "task-0" in visit.text()


@pytest.mark.long
def test_a_run_has_a_chart_of_every_metric(visit: Visit, made: MadeRun) -> None:
    _, run = made()
    page = visit.open(of_run(run), "/run")

    titles = page.locator("figure h3").all_inner_texts()
    assert len(titles) == 9
    assert {"Reward", "Share solved", "Staleness, updates"} <= set(titles)
    reward = page.locator('[data-panel="reward"]')
    assert reward.locator("path.curve").count() == 2  # the line, and its sample in the legend
    assert "0.27" in reward.inner_text()


@pytest.mark.long
def test_curves_differ_by_more_than_color(visit: Visit, made: MadeRun) -> None:
    _, run = made()
    page = visit.open(of_run(run), "/run")

    dashes = page.locator('[data-panel="time"] svg[role] path.curve').evaluate_all(
        "paths => paths.map(path => path.getAttribute('stroke-dasharray'))"
    )
    assert len(dashes) == len(set(dashes)) == 2


@pytest.mark.long
def test_a_step_is_a_funnel(visit: Visit, made: MadeRun) -> None:
    _, run = made()
    page = visit.open(of_run(run, "step", 1), "Step 1")

    stages = [line.split("\n")[:2] for line in page.locator(".stage").all_inner_texts()]
    assert stages == [
        ["generated", "8"],
        ["not masked", "8"],
        ["not rejected", "4"],
        ["trained", "4"],
        ["clipped", "12.5 %"],
    ]
    assert "dropped by reject/all_solved" in visit.text()


@pytest.mark.long
def test_group_members_are_side_by_side(visit: Visit, made: MadeRun) -> None:
    _, run = made()
    page = visit.open(of_run(run, "step", 1, "group", "task-0:agent"), "task-0:agent")

    assert page.locator(".member").count() == 4
    assert page.locator(".member").first.inner_text().count("answer") == 2
    assert page.locator(".member.solved").inner_text().count("✓ solved") == 1


@pytest.mark.long
def test_trajectories_are_found_by_filters(visit: Visit, made: MadeRun) -> None:
    _, run = made()
    page = visit.open(of_run(run, "rollouts"), "Trajectories")

    page.locator('[name="text"]').fill("TASK-1:3")
    page.get_by_text("find").click()

    page.get_by_text("1 to 3 of 3").wait_for()


@pytest.mark.long
def test_a_trajectory_shows_its_tokens_and_all_facts_of_one(visit: Visit, made: MadeRun) -> None:
    _, run = made()
    page = visit.open(of_episode(run, 1, UID, 10), UID)

    page.get_by_role("heading", name="Token 10").wait_for()
    facts = page.locator("aside dt").all_inner_texts()
    assert facts == [
        "Turn", "Reward", "Group", "Estimator", "Advantage", "Filter", "Weight version", "Minibatch", "Log-probs",
        "Loss", "Entropy", "Gradient",
    ]  # fmt: skip
    side = page.locator("aside").inner_text()
    assert "1, sampled" in side
    assert "0.00375" in side
    assert page.locator('[data-t="10"]').get_attribute("class") == "pos4 at"


@pytest.mark.long
def test_negative_push_is_dashed(visit: Visit, made: MadeRun) -> None:
    _, run = made()
    page = visit.open(of_episode(run, 1, "1.0:task-0:1/0"), "1.0:task-0:1/0")

    word = page.locator('[data-t="10"]')
    assert word.get_attribute("class") == "neg4"
    assert word.evaluate("node => getComputedStyle(node).borderBottomStyle") == "dashed"


@pytest.mark.long
def test_page_reports_values_missing_in_the_backend(visit: Visit, made: MadeRun) -> None:
    _, run = made(Made(traced=False))
    page = visit.open(of_episode(run, 1, UID, 10), UID)

    assert "this backend" in page.locator(".key-line").inner_text()
    assert page.locator("aside").inner_text().count("this backend") > 5


@pytest.mark.long
def test_trajectory_without_text_shows_the_setting(visit: Visit, made: MadeRun) -> None:
    _, run = made(Made(content="outcomes"))
    visit.open(of_episode(run, 1, UID), UID)

    assert "rllm.record=tokens" in visit.text()


@pytest.mark.long
def test_a_step_that_is_written_while_the_page_is_open_appears(visit: Visit, made: MadeRun) -> None:
    directory, run = made()
    page = visit.open(of_run(run), "/run")

    write_step(directory, 3, Made())

    page.locator(f'a[href="#/run/{run}/step/3"]').wait_for()
    page.locator('[data-panel="reward"] .where').get_by_text("step 3").wait_for()


@pytest.mark.long
def test_damaged_file_affects_only_its_step(visit: Visit, made: MadeRun) -> None:
    directory, run = made()
    (directory / "record" / "episodes" / "step_000001.parquet").write_bytes(b"PAR1")
    page = visit.open(of_run(run), "/run")

    page.locator(f'a[href="#/run/{run}/step/2"]').wait_for()
    page.locator(".problem").get_by_text("Step 1:").wait_for()


@pytest.mark.long
@pytest.mark.parametrize("address", ["#/run/none", "#/nowhere", "#/run/none/step/1/episode/x#t7"])
def test_unknown_address_shows_an_error(visit: Visit, address: str) -> None:
    visit.open(address, "This cannot be shown")
    # The browser itself reports an answer of 404.
    visit.problems.clear()


@pytest.mark.long
def test_page_without_the_key_shows_where_to_find_it(visit: Visit) -> None:
    page = visit.page
    page.evaluate("localStorage.clear()")
    page.reload()
    page.get_by_text("Open the address that `rllm view` printed.").wait_for()
    visit.problems.clear()


@pytest.mark.long
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (390, "light"), (1600, "dark")])
def test_no_page_is_wider_than_its_window(visit: Visit, made: MadeRun, width: int, scheme: str) -> None:
    _, run = made()
    visit.page.set_viewport_size({"width": width, "height": 800})
    visit.page.emulate_media(color_scheme=scheme)
    for address, heading in {
        "#/?": "Runs",
        of_run(run): "/run",
        of_run(run, "step", 1): "Step 1",
        of_run(run, "step", 1, "group", "task-0:agent"): "task-0:agent",
        of_run(run, "rollouts"): "Trajectories",
        of_episode(run, 1, UID, 10): UID,
    }.items():
        page = visit.open(address, heading)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, address
