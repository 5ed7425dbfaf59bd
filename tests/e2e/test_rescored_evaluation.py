"""A saved evaluation under other rewards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("with_view")

REWARDS = """
def broken(rollout):
    raise RuntimeError("the grader is down")

def fixed(rollout):
    return {"value": 1.0 if rollout.response.content == rollout.data["answer"] else 0.0, "correct": True}

def partly(rollout):
    if rollout.data["answer"] == "2":
        raise RuntimeError("the grader is down")
    return 0.25
"""
EVAL = (
    "eval",
    "question",
    "--data",
    "val.jsonl",
    "--model",
    "tiny",
    "rllm.rollout.n_val=4",
    "data.max_response_length=1",
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    rows = [{"question": "1+1", "answer": "2"}, {"question": "1+2", "answer": "3"}]
    (tmp_path / "val.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rewards.py").write_text(REWARDS)
    return tmp_path


def now(done: Any) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    (environment,) = json.loads(done.stdout)["environments"]
    (metrics,) = environment["now"]
    return dict(metrics)


@pytest.mark.parametrize("before", ["exact", "rewards.py:broken", "rewards.py:partly"])
def test_rewards_are_those_of_an_evaluation_with_the_other_reward(rllm_here: Any, directory: Path, before: str) -> None:
    rllm_here(*EVAL, "--reward", before, "--save", "kept")
    played = json.loads(rllm_here(*EVAL, "--reward", "rewards.py:fixed", "--json").stdout)["environments"][0]
    again = now(rllm_here("rescore", "kept", "--reward", "rewards.py:fixed", "--json"))
    assert again["passes"]["1"] == played["passes"]["1"]
    assert again["reward"] == played["reward"]
    assert again["metrics"] == played["metrics"]
    assert again["missing_rewards"] == 0


def test_a_reward_that_fails_now_is_missing(rllm_here: Any, directory: Path) -> None:
    rllm_here(*EVAL, "--reward", "exact", "--save", "kept")
    done = rllm_here("rescore", "kept", "--reward", "rewards.py:partly")
    stored, again = (line.split() for line in done.stdout.splitlines()[1:])
    assert stored[:3] == ["question", "8", "stored"]
    assert again[:3] == ["question", "8", "now"]
    assert now(rllm_here("rescore", "kept", "--reward", "rewards.py:partly", "--json"))["missing_rewards"] == 4


def test_the_result_is_an_evaluation_that_can_be_compared(rllm_here: Any, directory: Path) -> None:
    rllm_here(*EVAL, "--reward", "exact", "--save", "kept")
    rllm_here("rescore", "kept", "--reward", "rewards.py:fixed", "--save", "anew")
    done = rllm_here("eval", "compare", "kept", "anew", "--json")
    assert json.loads(done.stdout)["environments"][0]["passed"]["second"] == 1.0
    again = rllm_here("rescore", "kept", "--reward", "exact", "--save", "anew")
    assert "anew contains an evaluation already" in again.stderr


def test_what_cannot_be_scored_anew_is_said(rllm_here: Any, directory: Path) -> None:
    rllm_here("eval", "guess", "--model", "tiny", "rllm.rollout.n_val=1", "--save", "guesses")
    assert (
        "have the rewards of the environment, and none of `rllm.reward`"
        in rllm_here("rescore", "guesses", "--reward", "exact").stderr
    )
    assert "guesses is a saved evaluation. Score it" in rllm_here("rescore", "guesses").stderr
    assert "no reward named 'exat'" in rllm_here("rescore", "guesses", "--reward", "exat").stderr
    assert (
        "goes with no estimators" in rllm_here("rescore", "guesses", "--reward", "exact", "--estimator", "rloo").stderr
    )


def test_an_evaluation_does_not_go_on_with_a_reward_that_has_changed(rllm_here: Any, directory: Path) -> None:
    rllm_here(*EVAL, "--reward", "rewards.py:fixed", "--save", "kept")
    (directory / "rewards.py").write_text(REWARDS.replace('"value": 1.0', '"value": 0.5'))
    done = rllm_here(*EVAL, "--reward", "rewards.py:fixed", "--save", "kept", "rllm.rollout.n_val=8")
    assert done.returncode == 2
    assert "the source of reward python: rewards.py" in done.stderr and "has changed" in done.stderr
