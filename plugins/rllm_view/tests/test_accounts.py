"""Answers about one trajectory, down to its tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from expecting import check_values

from .asking import Asking, column
from .made_runs import CLIP_FACTOR, Made, make_run

FIRST = "1.0:task-0:0/0"


def answer_for(directory: Path, made: Made) -> Any:
    """The answer about the first trajectory of step 1 in such a run."""
    return Asking(make_run(directory / "p" / "r", made)).of_run("episode", step="1", uid=FIRST)


def test_a_trajectory_has_its_turns_its_peers_and_its_texts(ask: Asking) -> None:
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
    answer = answer_for(tmp_path, Made(steps=2, traced=False))

    missing = {each["id"]: each["missing"] for each in answer["columns"] if each["column"] is None}
    assert missing["push"] == missing["entropy"] == missing["logprob"]
    assert "backend" in missing["push"]
    assert column(answer, "advantage")[2] == 0.75
    assert column(answer, "old_logprob") == column(answer, "rollout_logprob")


def test_record_without_tokens_shows_the_setting(tmp_path: Path) -> None:
    answer = answer_for(tmp_path, Made(steps=2, content="outcomes"))

    assert (answer["texts"], answer["ids"]) == (None, None)
    assert "rllm.record=tokens" in next(each["missing"] for each in answer["columns"] if each["id"] == "push")
    assert "rllm.record=tokens" in next(fact["text"] for fact in answer["facts"] if fact["title"] == "Loss")


def test_missing_clipping_and_rollout_correction_are_reported(tmp_path: Path) -> None:
    answer = answer_for(tmp_path, Made(steps=2, clips=False))

    clipped, weight = (
        {each["missing"] for each in answer["columns"] if each["id"] == id} for id in ("clipped", "rollout_weight")
    )
    check_values(str(clipped), "loss", "clip")
    check_values(str(weight), "rollout correction")
