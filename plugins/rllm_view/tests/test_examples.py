"""The responses with the highest and the lowest rewards, and those on which two rewards differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from expecting import check_values, expect_error

from rllm_record.run_files import one_run
from rllm_record.steps import RecordError
from rllm_view.reading.examples import EXAMPLES, find_examples
from rllm_view.static import write_page

from .addresses import of_run
from .asking import Asking
from .made_runs import RunShape, make_run, step_rows, write_file
from .visiting import MadeRun, Visit

SHAPE = RunShape(steps=2, turns=1)
# Response, the reward `mine`, the reward `exact`, and the answer that was read, of the rollouts of each task.
LEAKY = [("1 2 3", 1.0, 0.0, "1 2 3"), ("1 2 3", 1.0, 0.0, "1 2 3"), ("2", 1.0, 1.0, "2"), ("four", 0.0, 0.0, None)]


def write_leaky_step(directory: Path, step: int) -> None:
    """Replace the episodes of a step by rollouts with two rewards. The reward of a rollout is `mine`."""
    rows = step_rows(step, SHAPE)["episodes"]
    for row, (response, mine, exact, extracted) in zip(rows, LEAKY * SHAPE.groups, strict=True):
        row["metrics"] = [("reward.mine", mine), ("reward.exact", exact), ("reward.mine.part", 9.0), ("turns", 7.0)]
        row["is_correct"] = exact == 1
        (trajectory,) = row["trajectories"]
        trajectory |= {"reward_given": mine, "components": [("mine", mine), ("mine.part", 9.0), ("exact", 0.0)]}
        trajectory["info"] = json.dumps({} if extracted is None else {"extracted": extracted})
        trajectory["steps"][-1]["text"] = response
    write_file(directory / "record", "episodes", step, rows, "tokens")


@pytest.fixture
def leaky_run(tmp_path: Path) -> Path:
    """A run whose last step has two rewards."""
    directory = make_run(tmp_path / "runs" / "project" / "leaky", SHAPE)
    write_leaky_step(directory, 1)
    return directory


def test_equal_responses_are_one_example(leaky_run: Path) -> None:
    found = find_examples(leaky_run / "record", 1, 1)

    assert (found.read_steps, found.rollouts) == (1, 8)
    assert [(each.response, each.rollouts, each.reward) for each in found.highest] == [
        ("1 2 3", 2, 1.0),
        ("1 2 3", 2, 1.0),
        ("2", 1, 1.0),
        ("2", 1, 1.0),
        ("four", 1, 0.0),
        ("four", 1, 0.0),
    ]
    assert [each.response for each in found.lowest][:2] == ["four", "four"]


def test_example_has_task_answer_and_rewards(leaky_run: Path) -> None:
    first = find_examples(leaky_run / "record", 1, 1).highest[0]

    assert (first.step, first.trajectory, first.task_id) == (1, "1.0:task-0:0/0", "task-0")
    assert (first.task, first.extracted, first.is_correct) == ('{"question": "1 + 1?"}', "1 2 3", False)
    assert first.rewards == {"mine": 1.0, "exact": 0.0}


def test_rewards_that_disagree_come_first(leaky_run: Path) -> None:
    found = find_examples(leaky_run / "record", 0, 1)

    assert found.read_steps == 2
    assert [(each.response, each.difference) for each in found.different] == [("1 2 3", 1.0)] * 2


def test_reward_of_environment_has_its_components(finished_run: Path) -> None:
    found = find_examples(finished_run / "record", 0, 2)

    assert [dict(each.rewards) for each in found.highest] == [{"exact": 1.0}] * 2 + [{"exact": 0.0}] * 2
    assert [each.rollouts for each in found.lowest] == [9, 9, 3, 3]
    assert found.different == []


def test_examples_without_text_have_rewards(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", RunShape(steps=1, groups=1, members=12, content="outcomes"))
    found = find_examples(run / "record", 0, 0)

    assert (len(found.highest), found.rollouts) == (EXAMPLES, 12)
    first = found.highest[0]
    assert (first.response, first.task, first.extracted, first.reward) == (None, None, None, 1.0)


def test_rollouts_without_reward_are_no_examples(leaky_run: Path) -> None:
    rows = step_rows(1, SHAPE)["episodes"]
    for row, reward in zip(rows, [None, float("inf"), -1.0], strict=False):
        row["trajectories"][0]["reward_given"] = reward
    write_file(leaky_run / "record", "episodes", 1, rows, "tokens")
    found = find_examples(leaky_run / "record", 1, 1)

    assert found.rollouts == 6
    assert found.lowest[0].reward == -1.0


def test_large_spans_read_the_latest_steps(leaky_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllm_view.reading.examples.MOST_BYTES", 1)
    found = find_examples(leaky_run / "record", 0, 1)

    assert (found.read_steps, found.highest[0].step) == (1, 1)


def test_examples_answer_has_the_latest_step(leaky_run: Path) -> None:
    asking = Asking(leaky_run)

    latest = asking.of_run("examples")
    assert (latest["first"], latest["last"], latest["previous_step"], latest["next_step"]) == (1, 1, 0, None)
    assert latest["examples"]["highest"][0]["rewards"] == {"mine": 1.0, "exact": 0.0}
    assert asking.of_run("examples", first="0")["examples"]["read_steps"] == 2
    with expect_error(RecordError, "no-record"):
        asking.of_run("examples", last="7")
    asking.library.close()


@pytest.mark.long
def test_page_shows_an_exploit_first(visit: Visit, shared_run: MadeRun) -> None:
    directory, run = shared_run("leaky", SHAPE)
    write_leaky_step(directory, 1)
    page = visit.open(of_run(run), "/leaky")
    page.get_by_role("link", name="examples by reward").click()
    visit.wait_for("Examples by reward")

    for table in ("highest rewards", "rewards that disagree"):
        heads = page.locator(f'[aria-label="{table}"] th').all_inner_texts()
        cells = page.locator(f'[aria-label="{table}"] tbody tr').first.locator("td").all_inner_texts()
        assert dict(zip(heads, cells, strict=True)) == {
            "trajectory": "1.0:task-0:0/0",
            "task": '{"question": "1 + 1?"}',
            "response": "1 2 3",
            "answer that was read": "1 2 3",
            "rollouts": "2",
            "solved": "no",
            "reward": "1",
            "mine": "1",
            "exact": "0",
        }
    visit.press("[")
    page.get_by_text("8 trajectories with a reward in step 0").wait_for()
    page.get_by_label("from step").fill("0")
    page.get_by_label("to step").fill("1")
    page.get_by_role("button", name="show").click()
    page.get_by_text("16 trajectories with a reward in 2 steps up to step 1").wait_for()
    visit.press("j", "Enter")
    visit.wait_for("1.0:task-0:0/0")


@pytest.mark.long
def test_copy_has_examples_of_latest_steps(
    open_page: Callable[[Path], Visit], leaky_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rllm_view.static.EXAMPLE_STEPS", 1)
    write_page([leaky_run], tmp_path / "run.html", episodes=0)
    visit = open_page(tmp_path / "run.html")
    page: Any = visit.page

    visit.press("x")
    visit.wait_for("Examples by reward")
    check_values(visit.text(), "1 2 3", "8 trajectories with a reward in step 1", "Rewards that disagree")
    assert page.locator("form").count() == 0
    page.goto(f"{visit.url}{of_run(one_run(leaky_run).id, 'examples')}?first=0&last=0")
    page.get_by_text("This copy does not contain that.").wait_for()
    assert visit.problems == []
