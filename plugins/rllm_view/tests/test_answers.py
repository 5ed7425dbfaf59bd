"""Answers about runs, steps, groups and trajectories, down to their tokens."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from expecting import check_values, expect_error

from rllm_core.errors import ConfigError, RllmError
from rllm_record.steps import RecordError
from rllm_view.answers import NotFoundError

from .asking import Asking, column
from .made_runs import CLIP_FACTOR, RunShape, make_run, write_step


def test_run_list_has_progress_and_results(ask: Asking, finished_run: Path) -> None:
    (found,) = ask("runs")["runs"]

    assert found["name"] == "project/made"
    assert found["directory"] == str(finished_run)
    assert (found["estimator"], found["loss"], found["model"]) == ("grpo", "ppo", "tiny")
    assert (found["steps"], found["total_steps"], found["recorded_steps"]) == (3, 4, 3)
    assert (found["solved"], found["content"]) == (0.25, "tokens")
    assert found["reward"] == pytest.approx(0.27)


def test_later_runs_and_runs_with_equal_names(tmp_path: Path) -> None:
    asking = Asking(tmp_path / "here", tmp_path / "there")
    assert asking.ids == []

    for place in ("here", "there"):
        make_run(tmp_path / place / "project" / "made", RunShape(steps=1))

    assert [each["name"] for each in asking("runs")["runs"]] == ["project/made", "project/made"]
    assert len(set(asking.ids)) == 2


def test_panels_group_curves_by_quantity(ask: Asking) -> None:
    answer = ask.of_run("curves")
    panels = {panel["id"]: panel["names"] for panel in answer["panels"]}

    assert panels["time"] == ["time/update", "time/generate"]
    assert panels["response_length"] == ["response_length/max", "response_length/mean"]
    assert answer["curves"]["actor/entropy"] == {"steps": [0, 1, 2], "values": [2.0, 1.9, 1.8]}
    assert answer["curves"]["staleness/max"] == {"steps": [0, 1, 2], "values": [1.0, 1.0, 1.0]}
    assert "time/step" not in answer["curves"]
    assert set(panels) == {
        "loss", "reward", "solved", "entropy", "kl", "grad_norm", "clip_fraction", "response_length", "time",
        "staleness",
    }  # fmt: skip
    assert panels["loss"] == []


def test_curves_metric_outside_panels_is_chosen(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "project" / "made", RunShape(steps=1))
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
    assert (summary["trained_groups"], summary["gradient_groups"]) == (1, 1)
    assert answer["previews"]["1.0:task-0:0/0"] == {"prompt": "question 0", "response": "answer 1"}
    assert summary["clipped"] == 0.125
    assert {"outcome": "trained", "rule": "", "trajectories": 4} in summary["decisions"]
    assert [group["outcome"] for group in answer["groups"]] == ["trained", "dropped"]
    assert answer["groups"][0]["reward_mean"] == 0.25


def test_group_without_advantage_has_no_gradient(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "project" / "made", RunShape(steps=1, groups=3, advantages=(0.0, 0.0)))

    summary = Asking(run).of_run("step", step="0")["summary"]

    assert (summary["trained"], summary["trained_groups"], summary["gradient_groups"]) == (8, 2, 0)


def test_panel_of_loss_is_for_runs_on_examples(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "project" / "made", RunShape(steps=0))
    (run / "metrics.jsonl").write_text('{"step": 0, "actor/loss": 4.5, "batch/examples": 3.0}\n')

    panels = {panel["id"]: panel["names"] for panel in Asking(run).of_run("curves")["panels"]}

    assert panels["loss"] == ["actor/loss"]


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
    assert ask.of_run("rollouts", **query)["found"]["total"] == expected


def test_rows_come_in_order_and_in_pages(ask: Asking) -> None:
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


def test_next_answer_has_new_and_repeated_steps(run: Path) -> None:
    asking = Asking(run)
    before = asking.of_run("state")
    assert asking.of_run("steps")["recorded"] == 3

    write_step(run, 3, RunShape())

    assert asking.of_run("state") != before
    asking.library.runs()[0].index.refresh()
    assert [each["step"] for each in asking.of_run("steps")["steps"]] == [0, 1, 2, 3]
    assert asking.of_run("curves")["curves"]["reward/agent/mean"]["steps"] == [0, 1, 2, 3]
    assert asking.of_run("rollouts", step="2")["found"]["total"] == 8
    write_step(run, 2, RunShape(members=3))
    assert asking.of_run("rollouts", step="2")["found"]["total"] == 6


class SlowToStart(threading.Thread):
    def start(self) -> None:
        time.sleep(0.05)
        super().start()


def test_several_pages_may_ask_at_once(finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = Asking(finished_run)
    index = asking.library.runs()[0].index
    with ThreadPoolExecutor(8) as pool:
        pool.submit(int).result()
        monkeypatch.setattr("rllm_view.reading.index.threading.Thread", SlowToStart)
        # A page asks for overview, curves and steps together.
        index_all = [pool.submit(index.refresh_for, 10.0) for _ in range(8)]
        assert [done.exception() for done in index_all] == [None] * 8

    assert index.steps() == [0, 1, 2]
    asking.library.close()


@pytest.mark.parametrize(
    ("error", "code", "path", "query"),
    [
        (RecordError, "no-record", "RUN/step", {"step": "9"}),
        (RecordError, "unknown-trajectory", "RUN/episode", {"step": "1", "uid": "nobody"}),
        (ConfigError, "bad-query", "RUN/step", {"step": "one"}),
        (ConfigError, "bad-query", "RUN/rollouts", {"order": "uid; DROP TABLE outcomes"}),
        (NotFoundError, "run-not-found", "runs/none", {}),
        (NotFoundError, "page-not-found", "../../etc/passwd", {}),
        (ConfigError, "bad-query", "compare", {"runs": "RUN"}),
    ],
)
def test_invalid_queries_return_the_reason(
    ask: Asking, error: type[RllmError], code: str, path: str, query: dict[str, str]
) -> None:
    (run,) = ask.ids
    with expect_error(error, code):
        ask(path.replace("RUN", f"runs/{run}"), **{name: value.replace("RUN", run) for name, value in query.items()})


def test_runs_are_compared_by_settings_and_tasks(tmp_path: Path) -> None:
    first, second = (make_run(tmp_path / "p" / name) for name in ("a", "b"))
    config = (second / "config.yaml").read_text().replace("n: 4", "n: 8")
    (second / "config.yaml").write_text(config)
    asking = Asking(first, second)

    answer = asking("compare", runs=",".join(asking.ids))

    assert answer["settings"] == [{"key": "rllm.rollout.n", "values": [4, 8]}]
    assert [row["task"] for row in answer["tasks"]] == ["task-0", "task-1"]
    assert [cell["solved"] for cell in answer["tasks"][0]["runs"]] == [0.25, 0.25]

    # Only steps that are readable in both runs count.
    file = second / "record/outcomes/step_000001.parquet"
    file.write_bytes(file.read_bytes()[:100])
    write_step(first, 3, RunShape())
    compared = Asking(first, second)("compare", runs=",".join(asking.ids))
    assert compared["problems"][1][0].startswith("Step 1: ")
    assert compared["compared_steps"] == 2
    assert [row["runs"][0]["rollouts"] for row in compared["tasks"]] == [8, 8]


FIRST = "1.0:task-0:0/0"


def answer_for(directory: Path, shared_run: RunShape) -> Any:
    """The answer about the first trajectory of step 1 in such a run."""
    return Asking(make_run(directory / "p" / "r", shared_run)).of_run("episode", step="1", uid=FIRST)


def test_trajectory_has_its_turns_peers_and_text(ask: Asking) -> None:
    answer = ask.of_run("episode", step="1", uid=FIRST)

    assert [turn["text"] for turn in answer["rollout"]["turns"]] == ["answer 0", "answer 1"]
    assert answer["rollout"]["turns"][1]["observations"] == [{"role": "user", "text": "question 1", "data": None}]
    assert [turn["prompt_start"] for turn in answer["rollout"]["turns"]] == [0, 6]
    assert answer["texts"][:3] == [" w0", " w1", " w2"]
    assert [peer["reward"] for peer in answer["group"]] == [1.0, 0.0, 0.0, 0.0]


def test_account_has_twelve_facts_as_text(ask: Asking) -> None:
    facts = {fact["title"]: fact["text"] for fact in ask.of_run("episode", step="1", uid=FIRST)["facts"]}

    assert list(facts) == [
        "Turn", "Reward", "Group", "Estimator", "Advantage", "Filter", "Weight version", "Minibatch", "Log-probs",
        "Loss", "Entropy", "Gradient",
    ]  # fmt: skip
    assert facts["Reward"] == "1 (exact 1)"
    check_values(facts["Group"], "task-0:agent: 4 trajectories, 1 solved", "0 to 1", "mean 0.25")
    assert facts["Estimator"] == "grpo, baseline 0.25"
    assert facts["Advantage"].startswith("0.75 ")
    assert facts["Filter"].startswith("trained in step 1; ")
    assert facts["Loss"] == "rllm-core/ppo, token-mean"


def test_push_and_old_log_probs_are_computed(ask: Asking) -> None:
    answer = ask.of_run("episode", step="1", uid=FIRST)

    push, policy = column(answer, "push", 1), column(answer, "policy_part", 1)
    assert push[:2] == [None, None]
    assert push[3] == pytest.approx(CLIP_FACTOR * 0.75 * 0.003)
    assert [value and -CLIP_FACTOR * value for value in policy] == pytest.approx(push, abs=1e-6)
    assert column(answer, "old_logprob") == column(answer, "rollout_logprob")
    assert column(answer, "ratio", 1)[2] == pytest.approx(1.1052, abs=1e-4)
    assert column(answer, "clipped", 0)[-2:] == [0.0, 1.0]


def test_dropped_trajectory_has_its_rule(ask: Asking) -> None:
    answer = ask.of_run("episode", step="1", uid="1.0:task-1:0/0")

    facts = {fact["title"]: fact["text"] for fact in answer["facts"]}
    check_values(facts["Filter"], "dropped", "step 1", "reject/all_solved (solved 4)")
    assert facts["Estimator"].startswith("none: ")
    (missing,) = {each["missing"] for each in answer["columns"] if each["id"] == "push"}
    assert missing.endswith(": dropped")


def test_backend_without_traces_is_reported(tmp_path: Path) -> None:
    answer = answer_for(tmp_path, RunShape(steps=2, traced=False))

    missing = {each["id"]: each["missing"] for each in answer["columns"] if each["column"] is None}
    assert missing["push"] == missing["entropy"] == missing["logprob"]
    assert "backend" in missing["push"]
    assert column(answer, "advantage")[2] == 0.75
    assert column(answer, "old_logprob") == column(answer, "rollout_logprob")


def test_record_without_tokens_shows_the_setting(tmp_path: Path) -> None:
    answer = answer_for(tmp_path, RunShape(steps=2, content="outcomes"))

    assert (answer["texts"], answer["ids"]) == (None, None)
    assert "rllm.record=tokens" in next(each["missing"] for each in answer["columns"] if each["id"] == "push")
    assert "rllm.record=tokens" in next(fact["text"] for fact in answer["facts"] if fact["title"] == "Loss")


def test_missing_clipping_and_rollout_correction_are_reported(tmp_path: Path) -> None:
    answer = answer_for(tmp_path, RunShape(steps=2, clips=False))

    clipped, weight = (
        {each["missing"] for each in answer["columns"] if each["id"] == id} for id in ("clipped", "rollout_weight")
    )
    check_values(str(clipped), "loss", "clip")
    check_values(str(weight), "rollout correction")
