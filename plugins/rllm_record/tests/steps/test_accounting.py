"""Every trajectory has exactly one outcome in each step in which it is generated or waits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import build_batch
from rllm_core.data.codec import group_from_json, group_to_json
from rllm_record.steps import RecordedEpisode, RecordedOutcome
from rllm_record.steps.accounting import Accounting

from .made_steps import group, rollout, step


def outcomes_of(accounting: Accounting, made: TrainStep) -> list[RecordedOutcome]:
    return accounting.account_for(made, {})[1]


def list_outcomes(outcomes: Sequence[RecordedOutcome]) -> dict[str, str]:
    """Return outcome and rule by trajectory."""
    assert len({each.outcome.trajectory for each in outcomes}) == len(outcomes)
    return {each.outcome.trajectory: f"{each.outcome.outcome} {each.outcome.rule}".strip() for each in outcomes}


def test_groups_at_the_end_are_trained_unless_skipped() -> None:
    a, b = rollout("t:0", 1.0), rollout("t:1", 0.0, "solver", "judge")
    made = step(3, [a, b], [group("t:all", a, b)])
    (first, second, third) = outcomes_of(Accounting(), made)

    assert list_outcomes([first, second, third]) == dict.fromkeys(["3.0:t:0/0", "3.0:t:1/0", "3.0:t:1/1"], "trained")
    assert (third.outcome.group, third.outcome.peers) == ("t:all", ("3.0:t:0/0", "3.0:t:1/0"))
    assert (third.name, third.episode, third.rollout_step, third.batch) == ("judge", "3.0:t:1", 3, 0)
    made.skip("no_gpu_today")
    assert {*list_outcomes(outcomes_of(Accounting(), made)).values()} == {"dropped skipped/no_gpu_today"}

    a, b = rollout("t:0"), rollout("t:0")  # Repeated tasks have different uids.
    made = step(2, [a, b], [group("t:agent", a), group("t:agent", b)], later_batches=[1])
    assert list_outcomes(outcomes_of(Accounting(), made)) == {"2.0:t:0/0": "trained", "2.1:t:0/0": "trained"}


def test_decision_has_the_reason_of_an_untrained_trajectory() -> None:
    a, b, c = rollout("t:0"), rollout("t:1"), rollout("u:0")
    solved = group("u:agent", c)
    made = step(0, [a, b, c], [group("t:agent", a)])
    made.decide("masked", "compact_filter/timeout", b.trajectories)
    made.decide("dropped", "reject/all_solved", c.trajectories, solved, {"solved": 1.0})

    outcomes = outcomes_of(Accounting(), made)

    assert list_outcomes(outcomes) == {
        "0.0:t:0/0": "trained",
        "0.0:t:1/0": "masked compact_filter/timeout",
        "0.0:u:0/0": "dropped reject/all_solved",
    }
    by_uid = {each.outcome.trajectory: each.outcome for each in outcomes}
    assert (by_uid["0.0:u:0/0"].group, by_uid["0.0:u:0/0"].numbers) == ("u:agent", {"solved": 1.0})
    assert by_uid["0.0:t:1/0"].group is None


def test_outcome_has_estimator_baseline_and_advantage() -> None:
    a, b, c = rollout("t:0", 1.0), rollout("t:1", 0.0), rollout("u:0", 0.5)
    groups = [group("t:agent", a, b), group("u:agent", c)]
    batch = build_batch(groups)
    advantages = np.array([0, 0, 1, 1, 0, 0, -1, -1, 0, 0, 0.25, 0.5], np.float32)
    made = step(0, [a, b, c], groups, batch=batch.with_columns(advantages=advantages))
    made.estimators, made.baselines = ("rloo", "precomputed"), np.array([0.0, 1.0, np.nan])

    outcomes = outcomes_of(Accounting(), made)

    assert [(each.estimator, each.baseline, each.advantage) for each in outcomes] == [
        ("rloo", 0.0, 1.0),
        ("rloo", 1.0, -1.0),
        ("precomputed", None, None),
    ]


def test_last_decision_applies() -> None:
    a, b, c, made_up = rollout("t:0"), rollout("t:1"), rollout("t:2"), rollout("made up")
    made = step(0, [a, b, c], [group("t:agent", b), group("g", made_up)])
    made.decide("waiting", "reject/waiting", a.trajectories, group("t:agent", a))
    made.decide("dropped", "reject/too_old", a.trajectories, group("t:agent", a))

    assert list_outcomes(outcomes_of(Accounting(), made)) == {
        "0.0:t:0/0": "dropped reject/too_old",
        "0.0:t:1/0": "trained",
        "0.0:t:2/0": "dropped unexplained",
        "0:made up/agent": "trained",
    }


def test_a_trajectory_that_waits_keeps_its_name() -> None:
    accounting = Accounting()
    a, b = rollout("t:0"), rollout("t:0")
    waiting = group("t:agent", a)
    first = step(0, [a], [])
    first.decide("waiting", "reject/waiting", a.trajectories, waiting)
    second = step(1, [b], [])
    second.decide("waiting", "reject/waiting", a.trajectories, waiting)
    second.decide("waiting", "reject/waiting", b.trajectories, group("t:agent", b))

    assert list_outcomes(outcomes_of(accounting, first)) == {"0.0:t:0/0": "waiting reject/waiting"}
    assert list_outcomes(outcomes_of(accounting, second)) == {
        "0.0:t:0/0": "waiting reject/waiting",
        "1.0:t:0/0": "waiting reject/waiting",
    }
    (outcome,) = outcomes_of(accounting, step(2, [], [waiting]))
    assert (list_outcomes([outcome]), outcome.rollout_step, outcome.episode) == ({"0.0:t:0/0": "trained"}, 0, "0.0:t:0")


def test_waiting_trajectories_keep_their_uids_after_resume() -> None:
    """They are created again from the checkpoint. Two groups of one id wait, in the order of their rollouts."""
    before = Accounting()
    waiting = [group("t:agent", rollout("t:0"), rollout("t:1")) for _ in range(2)]
    outcomes: list[RecordedOutcome] = []
    generated = [step(number, [], []) for number in range(2)]
    for number, made in enumerate(generated):
        made.generated = [rollout("t:0"), rollout("t:1")]
        waiting[number] = group("t:agent", *made.generated)
        for each in waiting[: number + 1]:
            made.decide("waiting", "reject/waiting", each.trajectories, each)
        outcomes = outcomes_of(before, made)
    restored = [group_from_json(group_to_json(each)) for each in waiting]

    after = outcomes_of(Accounting(outcomes), step(2, [], restored))

    assert list_outcomes(after) == dict.fromkeys(["0.0:t:0/0", "0.0:t:1/0", "1.0:t:0/0", "1.0:t:1/0"], "trained")
    assert [each.outcome.peers for each in after][:2] == [("0.0:t:1/0",), ("0.0:t:0/0",)]


def test_rewards_and_task_data_are_recorded() -> None:
    a, b, c = rollout("t:0", 1.0), rollout("t:1", 0.0), rollout("u:2", 0.25)
    made = step(0, [a, b, c], [group("t:agent", a, b)])
    made.given_rewards[id(b.trajectories[0])] = None

    generated: list[RecordedEpisode] = Accounting().account_for(made, {"t": {"number": 7}})[0]

    rewards = [(each.reward_given, each.reward_used) for episode in generated for each in episode.trajectories]
    assert rewards == [(1.0, 1.0), (None, 0.0), (0.25, None)]
    assert [each.task for each in generated] == [{"number": 7}, {"number": 7}, None]
