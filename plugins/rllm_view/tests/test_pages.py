"""The content of every page."""

from __future__ import annotations

import time

import pytest
from expecting import check_values

from rllm_record.pending import PendingFile, PendingRow, write_pending

from .addresses import of_episode, of_run
from .made_runs import PROMPT, RESPONSE, RunShape, running, write_step
from .visiting import MadeRun, Visit

pytestmark = pytest.mark.long

UID = "1.0:task-0:0/0"
TOKENS = 32_000
MOST_NODES = 5_000
SCRIPT = "</script><script>window.hacked=1</script>"
ELEMENTS = "<!--<img src=x onerror=window.hacked=1><svg onload=window.hacked=1>"
CHARACTERS = "\u2028line\u2029\u202eright to left\x00\x1b[2J\ufeff&lt;b&gt;'\"`${window.hacked=1}"
FIELDS = (
    "backend", "estimator", "loss", "aggregation", "component", "task_id", "data_source", "error", "metric", "task",
    "finish_reason", "role", "message", "response", "token", "rule", "group",
)  # fmt: skip


def test_chosen_runs_are_compared(visit: Visit, shared_run: MadeRun) -> None:
    (_, first), (_, second) = shared_run("first"), shared_run("second")
    page = visit.open("#/?", "Runs")

    for run in (first, second):
        page.locator(f'tr:has(a[href="#/run/{run}"]) input').check()
    page.get_by_text("compare 2 runs").click()

    page.get_by_text("Settings that differ").wait_for()
    assert "task-0" in visit.text()
    visit.open(f"#/compare?runs={first},{second}&metrics=time/step", "Runs side by side")
    legend = page.locator('[data-panel="metric time/step"] .legend span')
    legend.get_by_text("2: time/step").wait_for()
    chosen = legend.all_inner_texts()
    assert chosen == ["1: time/step", "2: time/step"]
    staleness = page.locator('[data-panel="staleness"] .legend span').all_inner_texts()
    assert staleness == ["1: staleness/max", "1: staleness/mean", "2: staleness/max", "2: staleness/mean"]


def test_a_run_has_a_chart_of_every_metric(visit: Visit, shared_run: MadeRun) -> None:
    _, run = shared_run()
    page = visit.open(of_run(run), "/run")

    titles = page.locator("figure h3").all_inner_texts()
    assert len(titles) == 9
    assert {"Reward", "Share solved", "Staleness, updates"} <= set(titles)
    reward = page.locator('[data-panel="reward"]')
    assert reward.locator("path.curve").count() == 2  # the line, and its sample in the legend
    assert "0.27" in reward.inner_text()
    # Curves differ by more than their color.
    dashes = page.locator('[data-panel="time"] svg[role] path.curve').evaluate_all(
        "paths => paths.map(path => path.getAttribute('stroke-dasharray'))"
    )
    assert len(dashes) == len(set(dashes)) == 2


def test_step_page_has_funnel_and_adjacent_groups(visit: Visit, shared_run: MadeRun) -> None:
    _, run = shared_run()
    page = visit.open(of_run(run, "step", 1), "Step 1")

    stages = [line.split("\n")[:2] for line in page.locator(".stage").all_inner_texts()]
    assert stages == [
        ["generated", "8"],
        ["not masked", "8"],
        ["not rejected", "4"],
        ["trained", "4"],
        ["clipped", "12.5 %"],
    ]
    check_values(visit.text(), "1 of 1 group has a policy gradient", "dropped by reject/all_solved", "question 0")

    visit.open(of_run(run, "step", 1, "group", "task-0:agent"), "task-0:agent")
    assert page.locator(".member").count() == 4
    assert page.locator(".member").first.inner_text().count("answer") == 2
    assert page.locator(".member.solved").inner_text().count("✓ solved") == 1


def test_trajectory_page_shows_tokens_and_one_tokens_facts(visit: Visit, shared_run: MadeRun) -> None:
    _, run = shared_run()
    page = visit.open(of_episode(run, 1, UID, 10), UID)

    page.get_by_role("heading", name="Token 10").wait_for()
    assert page.locator("aside dt").count() == 12
    side = page.locator("aside").inner_text()
    assert "1, sampled" in side
    assert "0.00375" in side
    token = page.locator('[data-t="10"]')
    assert token.get_attribute("class") == "pos4 at"
    # A negative push is dashed.
    visit.open(of_episode(run, 1, "1.0:task-0:1/0"), "1.0:task-0:1/0")
    assert token.get_attribute("class") == "neg4"
    assert token.evaluate("node => getComputedStyle(node).borderBottomStyle") == "dashed"


def test_step_written_while_page_is_open_appears(visit: Visit, shared_run: MadeRun) -> None:
    directory, run = shared_run("growing")
    page = visit.open(of_run(run), "/growing")

    write_step(directory, 3, RunShape())

    page.locator(f'a[href="#/run/{run}/step/3"]').wait_for()
    page.locator('[data-panel="reward"] .where').get_by_text("step 3").wait_for()


def test_run_page_lists_pending_rollouts(visit: Visit, shared_run: MadeRun) -> None:
    directory, run = shared_run("waiting")
    page = visit.open(of_run(run), "/waiting")
    waits = page.get_by_role("region", name="pending rollouts")
    row = PendingRow(rollout="task-3:5", turn=2, waits_for="tool", name="search", since=time.time() - 9, is_slow=True)

    with running(directory):
        write_pending(directory, PendingFile(total=3, rows=[row]))
        page.get_by_text("3 pending rollouts, 1 slow").wait_for()
        assert waits.inner_text().split()[-6:-2] == ["task-3:5", "2", "tool", "search"]
        write_pending(directory, PendingFile())
        waits.wait_for(state="hidden")


def test_run_page_shows_damaged_unread_and_absent_steps(visit: Visit, shared_run: MadeRun) -> None:
    directory, run = shared_run("damaged")
    (directory / "record" / "episodes" / "step_000001.parquet").write_bytes(b"PAR1")
    page = visit.open(of_run(run), "/damaged")
    page.locator(f'a[href="#/run/{run}/step/2"]').wait_for()
    page.locator(".problem").get_by_text("Step 1:").wait_for()

    _, run = shared_run()
    page.route(f"**/api/runs/{run}/steps", lambda route: route.fulfill(json={"steps": [], "indexed": 0, "recorded": 3}))
    visit.open(of_run(run), "/run")
    page.get_by_text("Reading 3 steps …").wait_for()
    assert "No step" not in visit.text()

    _, run = shared_run("unrecorded", RunShape(steps=0))
    visit.open(of_run(run), "/unrecorded")
    assert "No step" in visit.text()


def test_unknown_address_and_missing_key_are_explained(visit: Visit) -> None:
    for address in ("#/run/none", "#/nowhere", "#/run/none/step/1/episode/x#t7"):
        visit.page.goto("about:blank")
        visit.open(address, "This cannot be shown")
    page = visit.page
    key = page.evaluate("JSON.stringify(localStorage)")
    page.evaluate("localStorage.clear()")
    page.reload()
    page.get_by_text("Open the address that `rllm view` printed.").wait_for()
    page.evaluate("stored => Object.assign(localStorage, JSON.parse(stored))", key)
    # The browser itself reports answers of 401 and 404.
    visit.problems.clear()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1600, "light")])
def test_no_page_is_wider_than_its_window(visit: Visit, shared_run: MadeRun, width: int, scheme: str) -> None:
    _, run = shared_run()
    visit.page.set_viewport_size({"width": width, "height": 800})
    visit.page.emulate_media(color_scheme=scheme)
    for address, heading in {
        "#/?": "Runs",
        of_run(run): "/run",
        of_run(run, "step", 1): "Step 1",
        of_run(run, "step", 1, "group", "task-0:agent"): "task-0:agent",
        of_run(run, "rollouts"): "Trajectories",
        of_run(run, "examples"): "Examples by reward",
        of_episode(run, 1, UID, 10): UID,
    }.items():
        page = visit.open(address, heading)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, address
    assert page.locator("aside").bounding_box()["height"] < (400 if width < 800 else 800)


@pytest.mark.parametrize("response", [RESPONSE, 8_000 - PROMPT], ids=["many short turns", "few long turns"])
def test_long_trajectory_has_few_elements(visit: Visit, shared_run: MadeRun, response: int) -> None:
    turns = TOKENS // (PROMPT + response)
    what = RunShape(steps=1, groups=1, members=1, turns=turns, response=response, epochs=1)
    _, run = shared_run(f"{turns} turns", what)
    uid = "0.0:task-0:0/0"
    page = visit.open(of_episode(run, 0, uid), uid)
    page.locator("[data-t]").first.wait_for()
    nodes = "document.querySelectorAll('*').length"
    counts = [page.evaluate(nodes)]

    for token in (TOKENS // 2 + 1, turns * (PROMPT + response) - 1):
        visit.open(of_episode(run, 0, uid, token), uid)
        page.get_by_role("heading", name=f"Token {token}", exact=True).wait_for()
        page.locator(f'[data-t="{token}"]').wait_for()
        counts.append(page.evaluate(nodes))

    assert max(counts) < MOST_NODES
    visit.press("3", "ArrowLeft")
    page.get_by_role("heading", name=f"Token {token - 1}", exact=True).wait_for()


@pytest.mark.parametrize("hostile", [SCRIPT + CHARACTERS, ELEMENTS], ids=["script", "elements"])
def test_every_field_is_text_on_every_page(visit: Visit, shared_run: MadeRun, hostile: str) -> None:
    kind = f"<img src=x onerror=window.hacked=1>\u202e{len(hostile)}"
    (_, run), (_, other) = (
        shared_run(f"{kind} {name}", RunShape(steps=2, texts=dict.fromkeys(FIELDS, hostile))) for name in "ab"
    )
    page, shown = visit.page, []
    for address, found in {
        "#/?": f'a[href="#/run/{run}"]',
        of_run(run): "main table",
        of_run(run, "step", 1): "main table",
        of_run(run, "rollouts"): "main table",
        of_run(run, "examples"): "main table",
        f"#/compare?runs={run},{other}": "main table",
        of_run(run, "step", 1, "group", hostile): ".member a",
    }.items():
        visit.open(address)
        page.locator(found).first.wait_for()
        shown.append(visit.text())
    page.locator(".member a").first.click()
    page.locator("[data-t]").first.click()
    page.keyboard.press("2")
    shown.append(visit.text())
    page.keyboard.press("c")
    page.locator(".conversation").first.wait_for()
    shown.append(visit.text())

    for number, text in enumerate(shown):
        assert "window.hacked" in text, number
        assert not {"\x00", "\u2028", "\u202e", "\x1b"} & set(text), number
    assert page.evaluate("typeof window.hacked") == "undefined"
    assert page.locator("main script, main img, main iframe, main [onload], main [onerror]").count() == 0
