"""Metrics of rollouts, and rollouts that are printed."""

from __future__ import annotations

from typing import Any

import pytest

from rllm.evaluation.games import Games
from rllm.evaluation.metrics import Outcome, build_outcome, compute_metrics
from rllm.evaluation.report import print_metrics
from rllm.evaluation.rollouts import FinishedRollout
from rllm_core.data.types import Episode, Step, Task, TerminationReason, Trajectory


def outcome(task: str, index: int, correct: bool, **fields: Any) -> Outcome:
    given = {"source": "x", "rewards": (("agent", float(correct)),), "metrics": {}, "termination_reason": "env_done"}
    return Outcome(task_id=task, index=index, correct=correct, response_tokens=3, **given | fields)


def test_every_data_source_has_a_row() -> None:
    rows = compute_metrics("mixed", [outcome("a", 0, True), outcome("b", 0, False, source="y")])
    assert [(row.name, row.tasks, row.passes[1].value) for row in rows] == [("mixed/x", 1, 1.0), ("mixed/y", 1, 0.0)]


def test_pass_at_k_needs_k_rollouts_per_task() -> None:
    (row,) = compute_metrics("guess", [outcome("a", 0, True), outcome("a", 1, False), outcome("b", 0, False)])
    assert list(row.passes) == [1]
    assert row.passes[1].value == 0.25


def test_missing_rewards_are_counted_and_left_out() -> None:
    lost = outcome("a", 0, False, rewards=(("agent", None),))
    (row,) = compute_metrics("guess", [lost, outcome("a", 1, True), outcome("b", 0, True)])
    assert row.missing_rewards == 1
    assert row.reward is not None and row.reward.value == 1.0


def test_cause_of_missing_rewards_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    trajectory = Trajectory(name="agent", info={"reward_error": "ValueError('no number')"})
    lost = build_outcome(Episode(id="a:0", trajectories=[trajectory]))
    print_metrics(compute_metrics("guess", [lost]), {})
    assert "ValueError('no number')" in capsys.readouterr().err


def test_missing_or_infinite_rewards_are_no_zero() -> None:
    (row,) = compute_metrics("guess", [outcome("a", 0, False, rewards=())])
    assert row.reward is None
    built = build_outcome(Episode(id="t:3", trajectories=[Trajectory("agent", reward=float("nan"))]))
    assert (built.task_id, built.index, built.rewards) == ("t", 3, (("agent", None),))


@pytest.mark.parametrize(
    ("reward", "said"),
    [(0.0, "Intervals are 95 %, Wilson's;"), (2.0, "Student's")],
)
def test_the_table_says_which_intervals_it_has(reward: float, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    earned = [outcome(str(task), 0, False, rewards=(("agent", reward * (task + 1)),)) for task in range(200)]
    print_metrics(compute_metrics("guess", earned), {})
    shown = capsys.readouterr().out
    assert said in shown
    assert ("0.000 [0.000, 0.019]  0.000 [0.000, 0.019]" in shown) is (reward == 0.0)


def test_roles_have_separate_rewards() -> None:
    both = (("solver", 1.0), ("judge", 0.0))
    (row,) = compute_metrics("sum", [outcome("a", 0, True, rewards=both)])
    assert row.role_rewards == {"solver": 1.0, "judge": 0.0}
    assert row.reward is not None and row.reward.value == 0.5


def make_episode(task: str, index: int, response: str = "7") -> FinishedRollout:
    step = Step([1], [2, 3], text=response, messages=[{"role": "user", "content": "guess"}])
    episode = Episode(
        id=f"{task}:{index}",
        trajectories=[Trajectory("agent", [step], reward=0.5)],
        is_correct=True,
        termination_reason=TerminationReason.ENV_DONE,
    )
    return FinishedRollout(Task(id=task), episode)


def test_a_game_has_messages_and_responses_by_turn() -> None:
    games = Games(1)
    games.expect("sums", iter([(Task(id="a"), 0)]))
    games.take("sums", make_episode("a", 0))

    assert list(games.lines()) == [
        "══ sums, task a, rollout 0: solved ══",
        "── turn 0, 2 tokens ──",
        "user: guess",
        "→ 7",
        "reward: 0.5",
        "ended: env_done",
        "",
    ]


def test_first_rollouts_are_shown_in_order() -> None:
    games = Games(2)
    tasks = [Task(id=id) for id in "abc"]
    games.expect("sums", ((task, 0) for task in tasks))
    for id in "cba":
        games.take("sums", make_episode(id, 0))

    heads = [line for line in games.lines() if line.startswith("══")]
    assert heads == [f"══ sums, task {id}, rollout 0: solved ══" for id in "ab"]


def test_model_text_cannot_control_the_terminal() -> None:
    games = Games(1)
    games.expect("sums", iter([(Task(id="a"), 0)]))
    games.take("sums", make_episode("a", 0, response="\x1b[2J\u202e"))

    assert "→ \\x1b[2J\\u202e" in list(games.lines())
