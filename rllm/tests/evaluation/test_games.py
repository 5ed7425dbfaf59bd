"""Rollouts are printed with messages and responses."""

from __future__ import annotations

from rllm.evaluation.games import Games
from rllm.evaluation.rollouts import FinishedRollout
from rllm_core.data.types import Episode, Step, Task, TerminationReason, Trajectory


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


def test_the_first_are_shown_in_their_order_whichever_ends_first() -> None:
    games = Games(2)
    tasks = [Task(id=id) for id in "abc"]
    games.expect("sums", ((task, 0) for task in tasks))
    for id in "cba":
        games.take("sums", make_episode(id, 0))

    heads = [line for line in games.lines() if line.startswith("══")]
    assert heads == [f"══ sums, task {id}, rollout 0: solved ══" for id in "ab"]


def test_what_a_model_wrote_does_nothing_to_the_terminal() -> None:
    games = Games(1)
    games.expect("sums", iter([(Task(id="a"), 0)]))
    games.take("sums", make_episode("a", 0, response="\x1b[2J\u202e"))

    assert "→ \\x1b[2J\\u202e" in list(games.lines())
