"""Search in the text of rollouts, and the order of their list."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import get_args

import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError
from rllm_view.reading import texts as searching
from rllm_view.reading.rollouts import Order, RolloutRow

from .asking import Asking
from .made_runs import RunShape, make_run, write_step


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Asking:
    """A run whose steps 0 and 1 have other text than step 2, with 11 rollouts of each of 11 tasks."""
    run = make_run(tmp_path_factory.mktemp("runs") / "p" / "r", RunShape(steps=1, members=2))
    write_step(run, 1, RunShape(members=2, texts={"response": "Größer: <b>100 %</b>\\"}))
    write_step(run, 2, RunShape(groups=11, members=11, texts={"task": 'Say "é"', "message": "a.c"}))
    found = Asking(run)
    found.library.runs()[0].index.refresh()
    return found


@pytest.mark.parametrize(
    ("phrase", "total"),
    [
        ("question 1", 8),
        ("ANSWER 0", 125),
        ("gröSSer: <B>100 %", 0),
        ("grÖßer: <B>100 %", 4),
        ("%</b>\\", 4),
        ("a.c", 121),
        ("abc", 0),
        ('say "é"', 121),
        ("task-0", 0),
    ],
)
def test_search_phrase_finds_text_in_any_case(asking: Asking, phrase: str, total: int) -> None:
    answer = asking.of_run("rollouts", phrase=phrase)

    assert answer["found"]["total"] == total
    assert answer["search"] == {"steps": 3, "earlier": None}
    assert answer["texts"] is True


def test_search_with_filters_reads_their_steps_only(asking: Asking) -> None:
    answer = asking.of_run("rollouts", phrase="answer", step="0", solved="true", order="task", limit="1")

    assert answer["search"] == {"steps": 1, "earlier": None}
    assert answer["found"]["total"] == 2
    assert answer["found"]["rows"][0]["trajectory"] == "0.0:task-0:0/0"


@pytest.mark.parametrize("bound", ["MOST_FOUND", "MOST_BYTES"])
def test_search_beyond_bounds_has_a_next_step(asking: Asking, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(searching, bound, 1)

    first = asking.of_run("rollouts", phrase="answer")
    second = asking.of_run("rollouts", phrase="answer", until=str(first["search"]["earlier"]))

    assert (first["found"]["total"], first["search"]) == (121, {"steps": 1, "earlier": 1})
    assert second["search"]["steps"] == (1 if bound == "MOST_BYTES" else 2)


def test_search_damaged_file_finds_other_steps(asking: Asking, tmp_path: Path) -> None:
    (run,) = asking.library.runs()
    copy = shutil.copytree(run.place.directory, tmp_path / "copy")
    again = Asking(copy)
    again.library.runs()[0].index.refresh()
    (copy / "record" / "episodes" / "step_000002.parquet").write_bytes(b"PAR1")

    assert again.of_run("rollouts", phrase="answer 0")["found"]["total"] == 4
    with expect_error(ConfigError, "bad-query", "1000"):
        again.of_run("rollouts", phrase="a" * 1001)
    textless = Asking(make_run(tmp_path / "p" / "r", RunShape(steps=1, content="outcomes")))
    answer = textless.of_run("rollouts", phrase="answer")
    assert (answer["texts"], answer["found"]["total"]) == (False, 0)


@pytest.mark.parametrize("order", get_args(Order))
@pytest.mark.parametrize("descending", ["false", "true"])
def test_list_any_column_sorts_in_both_directions(asking: Asking, order: str, descending: str) -> None:
    rows = asking.of_run("rollouts", order=order, descending=descending, limit="500")["found"]["rows"]

    field = {"reward": "reward_given", "tokens": "sampled_tokens", "task": "task_id", "solved": "is_correct"}
    values = [row[field.get(order, order)] for row in rows]
    known = [value for value in values if value is not None]
    assert field.get(order, order) in RolloutRow.__annotations__
    assert values == known + [None] * (len(values) - len(known))
    if order in ("trajectory", "task"):
        known = [[int(number) for number in re.findall(r"\d+", value)] for value in known]
    assert known == sorted(known, reverse=descending == "true")


def test_rollouts_are_in_natural_order(asking: Asking) -> None:
    rows = asking.of_run("rollouts", step="2", limit="500")["found"]["rows"]
    groups = [group["group"] for group in asking.of_run("step", step="2")["groups"]]
    parts = [asking.of_run("group", step="2", group="task-0:agent", offset=offset) for offset in ("0", "8")]
    around = asking.of_run("episode", step="2", uid="2.0:task-9:10/0")["neighbors"]

    expected = [f"2.0:task-{task}:{member}/0" for task in range(11) for member in range(11)]
    assert [row["trajectory"] for row in rows] == expected
    assert groups == [f"task-{task}:agent" for task in range(11)]
    assert [part["total"] for part in parts] == [11, 11]
    members = [[each["row"]["trajectory"] for each in part["members"]] for part in parts]
    assert members == [expected[:8], expected[8:11]]
    assert (around["previous"], around["next"]) == ("2.0:task-9:9/0", "2.0:task-10:0/0")
    assert around["next_group"] == "2.0:task-10:0/0"
    assert around["previous_group"] == "2.0:task-8:0/0"
