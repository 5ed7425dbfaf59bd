"""Answers about runs, steps and groups."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError
from rllm_record.steps import RecordError
from rllm_view.api.library import NotFoundError

from .asking import Asking
from .made_runs import Made, make_run, write_step


def test_run_list_has_progress_and_results(ask: Asking, run: Path) -> None:
    (found,) = ask("runs")["runs"]

    assert found["name"] == "project/made"
    assert found["directory"] == str(run)
    assert (found["estimator"], found["loss"], found["model"]) == ("grpo", "ppo", "tiny")
    assert (found["steps"], found["total_steps"], found["recorded_steps"]) == (3, 4, 3)
    assert (found["solved"], found["content"]) == (0.25, "tokens")
    assert found["reward"] == pytest.approx(0.27)


def test_two_runs_of_one_name_are_two(tmp_path: Path) -> None:
    here, there = (make_run(tmp_path / place / "project" / "made") for place in ("here", "there"))

    asking = Asking(here, there)

    assert [each["name"] for each in asking("runs")["runs"]] == ["project/made", "project/made"]
    assert len(set(asking.ids)) == 2


def test_later_run_is_found(tmp_path: Path) -> None:
    asking = Asking(tmp_path / "runs")
    assert asking.ids == []

    make_run(tmp_path / "runs" / "project" / "late")

    assert [each["name"] for each in asking("runs")["runs"]] == ["project/late"]


def test_panels_group_curves_by_quantity(ask: Asking) -> None:
    answer = ask.of_run("curves")
    panels = {panel["id"]: panel["names"] for panel in answer["panels"]}

    assert panels["time"] == ["time/update", "time/generate"]
    assert panels["response_length"] == ["response_length/max", "response_length/mean"]
    assert answer["curves"]["actor/entropy"] == {"steps": [0, 1, 2], "values": [2.0, 1.9, 1.8]}
    assert answer["curves"]["staleness/max"] == {"steps": [0, 1, 2], "values": [1.0, 1.0, 1.0]}
    assert "time/step" not in answer["curves"]
    assert set(panels) == {
        "reward", "solved", "entropy", "kl", "grad_norm", "clip_fraction", "response_length", "time", "staleness"
    }  # fmt: skip


def test_curves_metric_outside_panels_is_chosen(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "project" / "made", Made(steps=1))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 0, "mine/a,b": 3.0}\n')

    answer = Asking(run).of_run("curves", metrics="mine/a%2Cb,time/step,unknown")

    assert {"mine/a,b", "time/step", "train/weight_version", "actor/entropy"} < set(answer["names"])
    assert "step" not in answer["names"]
    assert answer["curves"]["mine/a,b"]["values"] == [3.0]
    assert answer["curves"]["time/step"]["values"] == [0.5]
    assert "train/weight_version" not in answer["curves"]


def test_step_summary_counts_outcomes(ask: Asking) -> None:
    answer = ask.of_run("step", step="1")

    summary = answer["summary"]
    counted = [summary[name] for name in ("generated", "masked", "dropped", "waiting", "trained")]
    assert counted == [8, 0, 4, 0, 4]
    assert summary["clipped"] == 0.125
    assert {"outcome": "trained", "rule": "", "trajectories": 4} in summary["decisions"]
    assert [group["outcome"] for group in answer["groups"]] == ["trained", "dropped"]
    assert answer["groups"][0]["reward_mean"] == 0.25


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, 24),
        ({"step": "2"}, 8),
        ({"outcome": "dropped"}, 12),
        ({"solved": "true", "step": "0"}, 2),
        ({"reward_min": "0.5"}, 6),
        ({"task": "task-1", "outcome": "trained"}, 0),
        ({"text": "TASK-1:3"}, 3),
        ({"rule": "reject/all_solved", "step": "1"}, 4),
        ({"task": "' OR 1=1 --"}, 0),
    ],
)
def test_trajectories_are_found_by_filters(ask: Asking, query: dict[str, str], expected: int) -> None:
    ask.library.runs()[0].index.refresh()

    assert ask.of_run("rollouts", **query)["found"]["total"] == expected


def test_rows_come_in_order_and_in_pages(ask: Asking) -> None:
    ask.library.runs()[0].index.refresh()
    query = {"order": "reward", "descending": "true", "limit": "2"}

    first = ask.of_run("rollouts", **query)["found"]
    second = ask.of_run("rollouts", **query, offset="2")["found"]

    rows = first["rows"] + second["rows"]
    assert first["total"] == 24
    assert [row["reward_given"] for row in rows] == [1.0] * 4
    assert len({row["trajectory"] for row in rows}) == 4


def test_a_group_is_shown_side_by_side(ask: Asking) -> None:
    answer = ask.of_run("group", step="1", group="task-0:agent")

    assert [member["row"]["reward_given"] for member in answer["members"]] == [1.0, 0.0, 0.0, 0.0]
    assert [member["row"]["advantage"] for member in answer["members"]] == [0.75, -0.25, -0.25, -0.25]
    first = answer["members"][0]["turns"][0]
    assert (first["observations"][0]["text"], first["text"]) == ("question 0", "answer 0")


def test_a_large_group_comes_in_parts(tmp_path: Path) -> None:
    asking = Asking(make_run(tmp_path / "p" / "r", Made(members=11)))

    parts = [asking.of_run("group", step="1", group="task-0:agent", offset=offset) for offset in ("0", "8")]

    assert [(part["total"], len(part["members"])) for part in parts] == [(11, 8), (11, 3)]


def test_a_trajectory_knows_its_neighbors(ask: Asking) -> None:
    found = ask.of_run("episode", step="1", uid="1.0:task-0:3/0")

    assert found["neighbors"] == {
        "position": 3,
        "total": 8,
        "previous": "1.0:task-0:2/0",
        "next": "1.0:task-1:0/0",
        "previous_group": None,
        "next_group": "1.0:task-1:0/0",
    }
    assert (found["previous_step"], found["next_step"]) == (0, 2)


def test_new_step_is_in_the_next_answer(ask: Asking, run: Path) -> None:
    before = ask.of_run("state")
    assert ask.of_run("steps")["recorded"] == 3

    write_step(run, 3, Made())

    assert ask.of_run("state") != before
    ask.library.runs()[0].index.refresh()
    assert [each["step"] for each in ask.of_run("steps")["steps"]] == [0, 1, 2, 3]
    assert ask.of_run("curves")["curves"]["reward/agent/mean"]["steps"] == [0, 1, 2, 3]


class SlowToStart(threading.Thread):
    def start(self) -> None:
        time.sleep(0.05)
        super().start()


def test_several_pages_may_ask_at_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = Asking(run)
    index = asking.library.runs()[0].index
    with ThreadPoolExecutor(8) as pool:
        pool.submit(int).result()
        monkeypatch.setattr("rllm_view.reading.index.threading.Thread", SlowToStart)
        # A page asks for overview, curves and steps together.
        index_all = [pool.submit(index.refresh_for, 10.0) for _ in range(8)]
        assert [done.exception() for done in index_all] == [None] * 8

    assert index.steps() == [0, 1, 2]
    asking.library.close()


def test_repeated_step_is_counted_once(ask: Asking, run: Path) -> None:
    assert ask.of_run("rollouts", step="2")["found"]["total"] == 8

    write_step(run, 2, Made(members=3))

    assert ask.of_run("rollouts", step="2")["found"]["total"] == 6


def test_damaged_file_affects_only_its_step(ask: Asking, run: Path) -> None:
    (run / "record" / "episodes" / "step_000001.parquet").write_bytes(b"PAR1")

    ask.library.runs()[0].index.refresh()

    assert [each["step"] for each in ask.of_run("steps")["steps"]] == [0, 2]
    (problem,) = ask.of_run("")["problems"]
    assert problem.startswith("Step 1:")
    assert "cannot be read" in problem


def test_invalid_queries_return_the_reason(ask: Asking) -> None:
    with expect_error(RecordError, "no-record", 9):
        ask.of_run("step", step="9")
    with expect_error(RecordError, "unknown-trajectory"):
        ask.of_run("episode", step="1", uid="nobody")
    with expect_error(ConfigError, "bad-query"):
        ask.of_run("step", step="one")
    with expect_error(ConfigError, "bad-query"):
        ask.of_run("rollouts", order="uid; DROP TABLE outcomes")
    with expect_error(NotFoundError, "run-not-found"):
        ask("runs/none")
    with expect_error(NotFoundError, "page-not-found"):
        ask("../../etc/passwd")
    with expect_error(ConfigError, "bad-query", "1 runs cannot"):
        ask("compare", runs=ask.ids[0])


def test_runs_are_compared_by_settings_and_tasks(tmp_path: Path) -> None:
    first, second = (make_run(tmp_path / "p" / name) for name in ("a", "b"))
    config = (second / "config.yaml").read_text().replace("n: 4", "n: 8")
    (second / "config.yaml").write_text(config)
    asking = Asking(first, second)

    answer = asking("compare", runs=",".join(asking.ids))

    assert answer["settings"] == [{"key": "rllm.rollout.n", "values": [4, 8]}]
    assert [row["task"] for row in answer["tasks"]] == ["task-0", "task-1"]
    assert [cell["solved"] for cell in answer["tasks"][0]["runs"]] == [0.25, 0.25]
