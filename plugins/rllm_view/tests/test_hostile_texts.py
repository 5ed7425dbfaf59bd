"""Output of a model, a task or a plugin is plain text on every page."""

from __future__ import annotations

import pytest

from .addresses import of_run
from .made_runs import Made
from .visiting import MadeRun, Visit

SCRIPT = "</script><script>window.hacked=1</script>"
ELEMENTS = "<!--<img src=x onerror=window.hacked=1><svg onload=window.hacked=1>"
CHARACTERS = "\u2028line\u2029\u202eright to left\x00\x1b[2J\ufeff&lt;b&gt;'\"`${window.hacked=1}"
FIELDS = (
    "backend", "estimator", "loss", "aggregation", "component", "task_id", "data_source", "error", "metric", "task",
    "finish_reason", "role", "message", "response", "token", "rule", "group",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("hostile", [SCRIPT, ELEMENTS, CHARACTERS], ids=["script", "elements", "characters"])
def test_every_field_is_text_on_every_page(visit: Visit, made: MadeRun, hostile: str) -> None:
    _, run = made(Made(steps=2, texts=dict.fromkeys(FIELDS, hostile)))
    _, other = made(Made(steps=2, texts=dict.fromkeys(FIELDS, hostile)), name="other")
    page = visit.page
    page.locator(f'a[href="#/run/{run}"]').wait_for()
    shown = [visit.text()]

    addresses = [of_run(run), of_run(run, "step", 1), of_run(run, "rollouts"), f"#/compare?runs={run},{other}"]
    for address in addresses:
        visit.open(address)
        page.locator("main table").first.wait_for()
        shown.append(visit.text())
    visit.open(of_run(run, "step", 1, "group", hostile))
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


@pytest.mark.long
def test_a_name_of_a_run_is_text(visit: Visit, made: MadeRun) -> None:
    _, run = made(name="<img src=x onerror=window.hacked=1>\u202e")

    visit.open(of_run(run), "<img src=x onerror=window.hacked=1>\\u202e")

    assert visit.page.evaluate("typeof window.hacked") == "undefined"


@pytest.mark.long
def test_the_policy_stops_a_script_that_got_in(visit: Visit) -> None:
    ran = visit.page.evaluate(
        """() => {
            const script = document.createElement("script");
            try { script.textContent = "window.hacked = 1"; document.body.append(script); } catch { return "refused"; }
            return typeof window.hacked;
        }"""
    )

    assert ran in ("refused", "undefined")
    # The browser reports what it has stopped.
    visit.problems.clear()
