"""Every trajectory has exactly one fate in each step in which it is played or waits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import build_batch
from rllm_core.data.codec import group_from_json, group_to_json
from rllm_record.steps import PlayedEpisode, RecordedFate
from rllm_record.steps.accounting import Accounting

from .made_steps import attempt, group, step


def fates_of(accounting: Accounting, made: TrainStep) -> list[RecordedFate]:
    return accounting.of(made, {})[1]


def told(fates: Sequence[RecordedFate]) -> dict[str, str]:
    """Fate and rule by trajectory."""
    assert len({each.fate.trajectory for each in fates}) == len(fates)
    return {each.fate.trajectory: f"{each.fate.fate} {each.fate.rule}".strip() for each in fates}


def test_what_is_in_the_groups_at_the_end_is_trained_on() -> None:
    a, b = attempt("t:0", 1.0), attempt("t:1", 0.0, "solver", "judge")
    (first, second, third) = fates_of(Accounting(), step(3, [a, b], [group("t:all", a, b)]))

    assert told([first, second, third]) == dict.fromkeys(["3.0:t:0/0", "3.0:t:1/0", "3.0:t:1/1"], "trained")
    assert (third.fate.group, third.fate.peers) == ("t:all", ("3.0:t:0/0", "3.0:t:1/0"))
    assert (third.name, third.episode, third.played_step, third.round) == ("judge", "3.0:t:1", 3, 0)


def test_a_decision_says_why_a_trajectory_is_not_trained_on() -> None:
    a, b, c = attempt("t:0"), attempt("t:1"), attempt("u:0")
    solved = group("u:agent", c)
    made = step(0, [a, b, c], [group("t:agent", a)])
    made.decide("masked", "compact_filter/timeout", b.trajectories)
    made.decide("dropped", "reject/all_solved", c.trajectories, solved, {"solved": 1.0})

    fates = fates_of(Accounting(), made)

    assert told(fates) == {
        "0.0:t:0/0": "trained",
        "0.0:t:1/0": "masked compact_filter/timeout",
        "0.0:u:0/0": "dropped reject/all_solved",
    }
    by_uid = {each.fate.trajectory: each.fate for each in fates}
    assert (by_uid["0.0:u:0/0"].group, by_uid["0.0:u:0/0"].numbers) == ("u:agent", {"solved": 1.0})
    assert by_uid["0.0:t:1/0"].group is None


def test_a_fate_says_how_its_advantage_came_about() -> None:
    a, b, c = attempt("t:0", 1.0), attempt("t:1", 0.0), attempt("u:0", 0.5)
    groups = [group("t:agent", a, b), group("u:agent", c)]
    batch = build_batch(groups)
    advantages = np.array([0, 0, 1, 1, 0, 0, -1, -1, 0, 0, 0.25, 0.5], np.float32)
    made = step(0, [a, b, c], groups, batch=batch.with_columns(advantages=advantages))
    made.estimators, made.baselines = ("rloo", "precomputed"), np.array([0.0, 1.0, np.nan])

    fates = fates_of(Accounting(), made)

    assert [(each.estimator, each.baseline, each.advantage) for each in fates] == [
        ("rloo", 0.0, 1.0),
        ("rloo", 1.0, -1.0),
        ("precomputed", None, None),
    ]


def test_the_last_decision_holds() -> None:
    a = attempt("t:0")
    made = step(0, [a], [])
    made.decide("waiting", "reject/waiting", a.trajectories, group("t:agent", a))
    made.decide("dropped", "reject/too_old", a.trajectories, group("t:agent", a))

    assert told(fates_of(Accounting(), made)) == {"0.0:t:0/0": "dropped reject/too_old"}


def test_the_groups_of_a_step_that_is_skipped_are_dropped() -> None:
    a = attempt("t:0")
    made = step(0, [a], [group("t:agent", a)])
    made.skip("no_gpu_today")

    assert told(fates_of(Accounting(), made)) == {"0.0:t:0/0": "dropped skipped/no_gpu_today"}


def test_what_a_stage_takes_out_without_a_word_is_unexplained() -> None:
    a, b = attempt("t:0"), attempt("t:1")

    fates = fates_of(Accounting(), step(0, [a, b], [group("t:agent", a)]))

    assert told(fates) == {"0.0:t:0/0": "trained", "0.0:t:1/0": "dropped unexplained"}


def test_a_task_that_comes_round_again_is_told_apart() -> None:
    a, b = attempt("t:0"), attempt("t:0")
    made = step(2, [a, b], [group("t:agent", a), group("t:agent", b)], later_rounds=[1])

    assert told(fates_of(Accounting(), made)) == {"2.0:t:0/0": "trained", "2.1:t:0/0": "trained"}


def test_a_trajectory_that_waits_keeps_its_name() -> None:
    accounting = Accounting()
    a, b = attempt("t:0"), attempt("t:0")
    waiting = group("t:agent", a)
    first = step(0, [a], [])
    first.decide("waiting", "reject/waiting", a.trajectories, waiting)
    second = step(1, [b], [])
    second.decide("waiting", "reject/waiting", a.trajectories, waiting)
    second.decide("waiting", "reject/waiting", b.trajectories, group("t:agent", b))

    assert told(fates_of(accounting, first)) == {"0.0:t:0/0": "waiting reject/waiting"}
    assert told(fates_of(accounting, second)) == {
        "0.0:t:0/0": "waiting reject/waiting",
        "1.0:t:0/0": "waiting reject/waiting",
    }
    (fate,) = fates_of(accounting, step(2, [], [waiting]))
    assert (told([fate]), fate.played_step, fate.episode) == ({"0.0:t:0/0": "trained"}, 0, "0.0:t:0")


def test_trajectories_that_waited_are_recognised_after_a_resume() -> None:
    """They are made anew from the checkpoint; two groups of one id wait, in the order in which they were played."""
    before = Accounting()
    waiting = [group("t:agent", attempt("t:0"), attempt("t:1")) for _ in range(2)]
    fates: list[RecordedFate] = []
    played = [step(number, [], []) for number in range(2)]
    for number, made in enumerate(played):
        made.generated = [attempt("t:0"), attempt("t:1")]
        waiting[number] = group("t:agent", *made.generated)
        for each in waiting[: number + 1]:
            made.decide("waiting", "reject/waiting", each.trajectories, each)
        fates = fates_of(before, made)
    anew = [group_from_json(group_to_json(each)) for each in waiting]

    after = fates_of(Accounting(fates), step(2, [], anew))

    assert told(after) == dict.fromkeys(["0.0:t:0/0", "0.0:t:1/0", "1.0:t:0/0", "1.0:t:1/0"], "trained")
    assert [each.fate.peers for each in after][:2] == [("0.0:t:1/0",), ("0.0:t:0/0",)]


def test_a_trajectory_that_a_grouping_made_has_a_fate_too() -> None:
    a, made_up = attempt("t:0"), attempt("made up")

    fates = fates_of(Accounting(), step(0, [a], [group("g", made_up)]))

    assert told(fates) == {"0:made up/agent": "trained", "0.0:t:0/0": "dropped unexplained"}


def test_rewards_are_recorded_as_given_and_as_used() -> None:
    a, b, c = attempt("t:0", 1.0), attempt("t:1", 0.0), attempt("t:2", 0.25)
    made = step(0, [a, b, c], [group("t:agent", a, b)])
    made.given_rewards[id(b.trajectories[0])] = None

    played: list[PlayedEpisode] = Accounting().of(made, {})[0]

    rewards = [(each.reward_given, each.reward_used) for episode in played for each in episode.trajectories]
    assert rewards == [(1.0, 1.0), (None, 0.0), (0.25, None)]


def test_the_task_of_an_attempt_is_recorded_where_it_is_known() -> None:
    a, b = attempt("t:0"), attempt("u:0")

    played, *_ = Accounting().of(step(0, [a, b], []), {"t": {"number": 7}})

    assert [each.task for each in played] == [{"number": 7}, None]
