"""Each rule finds its fault, and does not report a run that looks similar and has no fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from rllm.builtin.doctor.catalog import RULES
from rllm.builtin.doctor.reading import make_rollouts
from rllm.builtin.doctor.reward_rules import SIMILAR, repetition
from rllm.builtin.doctor.rule import diagnose
from rllm.builtin.doctor.run_data import Column, RunData, Series

STEPS = 40
RISE = np.linspace(0, 0.7, STEPS)
FLAT = np.full(STEPS, 0.3)
GROWTH = np.linspace(1, 6, STEPS)
COMPONENTS = [{"right": 1, "form": 1}, {"right": 0, "form": 1}, {"right": 1, "form": 0}, {"right": 0, "form": 0}]


def names_of(run: RunData) -> list[str]:
    """Return the rules that find a fault, in order."""
    return [finding.rule.name for finding in diagnose(run, RULES).findings]


def run_of(metrics: Mapping[Column, Any], rows: Sequence[Mapping[str, Any]] = (), **fields: Any) -> RunData:
    """Return a run with these metrics and rollouts."""
    values = {column: np.broadcast_to(np.array(each, float), STEPS) for column, each in metrics.items()}
    rollouts = make_rollouts(rows) if rows else None
    run = RunData(name="run", source="rllm", steps=np.arange(STEPS), metrics=values, rollouts=rollouts, **fields)
    return run.with_metrics_of_rollouts()


def rows_of(*rewards: float, steps: int = STEPS, **fields: Any) -> list[dict[str, Any]]:
    """Return the rows of a group in each step. A list in `fields` has one value per rollout."""
    return [
        {"uid": f"{step}.0:a:{index}/0", "step": step, "task": "a", "group": step, "reward": reward}
        | {"solved": float(reward == 1)}
        | {name: value[index] if isinstance(value, list) else value for name, value in fields.items()}
        for step in range(steps)
        for index, reward in enumerate(rewards)
    ]


@pytest.mark.parametrize(
    ("expected", "metrics"),
    [
        ("update_too_large", {Column.KL_STEP: [0.01] * 30 + [2] * 10}),
        ("clipping", {Column.CLIPPED: 0.5}),
        ("gradient_spikes", {Column.GRADIENT: [1, 1, 1, 90] * 10}),
        ("entropy_collapse", {Column.ENTROPY: [2] * 10 + [0.01] * 30, Column.REWARD: FLAT}),
        ("entropy_too_high", {Column.ENTROPY: np.linspace(1, 3, STEPS), Column.REWARD: FLAT}),
        ("entropy_too_high", {Column.ENTROPY: [1] + [4] * 39, Column.REWARD: FLAT, Column.TRUNCATED: 0.9}),
        ("learning_rate_ended", {Column.LEARNING_RATE: [1e-5] * 20 + [0] * 20}),
        ("sampler_mismatch", {Column.MISMATCH: 0.3}),
        ("old_tokens", {Column.STALENESS: 5}),
        ("prefix_breaks", {Column.PREFIX_BREAKS: 2}),
        ("useless_critic", {Column.EXPLAINED_VARIANCE: -0.5}),
        ("reward_fell", {Column.REWARD: [*np.linspace(0, 0.7, 25), *np.linspace(0.6, 0.1, 15)]}),
        ("no_learning", {Column.REWARD: FLAT}),
        ("length_without_reward", {Column.LENGTH: np.linspace(10, 90, STEPS), Column.REWARD: FLAT}),
        ("truncation", {Column.TRUNCATED: 0.9, Column.REWARD: RISE}),
        ("failed_rollouts", {Column.FAILED: 0.2}),
        ("missing_rewards", {Column.MISSING_REWARDS: 3}),
        ("validation_against_training", {Column.VALIDATION: [0.3, 0.2] * 20, Column.REWARD: RISE}),
    ],
)
def test_metric_of_fault_is_found_first(expected: str, metrics: Mapping[Column, Any]) -> None:
    assert names_of(run_of(metrics))[0] == expected


@pytest.mark.parametrize(
    "metrics",
    [
        {Column.ENTROPY: [2] * 10 + [0.01] * 30, Column.REWARD: RISE, Column.SOLVED: np.linspace(0, 1, STEPS)},
        {Column.GRADIENT: [1, 2, 1, 3] * 10},
        {Column.GRADIENT: [0.05, 0.05, 0.05, 1] * 10, Column.ZERO_ADVANTAGE: [0.8, 0.8, 0.8, 0] * 10},
        {Column.LEARNING_RATE: np.linspace(1e-5, 0, STEPS)},
        {Column.MISMATCH: 0.3, Column.STALENESS: 1},
        {Column.LENGTH: np.linspace(10, 90, STEPS), Column.REWARD: RISE},
        {Column.VALIDATION: RISE, Column.REWARD: RISE},
        {Column.REWARD: RISE},
    ],
    ids=[
        "solved",
        "uneven gradients",
        "uneven signal",
        "whole schedule",
        "old tokens differ",
        "useful length",
        "validation",
        "rise",
    ],
)
def test_similar_run_without_fault_has_no_finding(metrics: Mapping[Column, Any]) -> None:
    assert names_of(run_of(metrics)) == []


@pytest.mark.parametrize(
    ("expected", "rows"),
    [
        ("tasks_too_hard", rows_of(0, 0, 0, 0)),
        ("tasks_too_easy", rows_of(1, 1, 1, 1)),
        ("constant_reward", rows_of(0.5, 0.5, solved=[1, 0])),
        ("identical_rollouts", rows_of(1, 0, text="same answer")),
        ("repeating_responses", rows_of(1, 0, text=["lalalalalalalala", "no"])),
        ("empty_responses", rows_of(1, 0, text=["", "no"])),
        ("dominant_component", rows_of(1.1, 1, 0.1, 0, solved=[1, 0, 1, 0], components=COMPONENTS)),
        ("rewards_disagree", rows_of(1, 0, disagreement=[1, 0], components={"a": 1, "b": 0})),
        ("unused_rollouts", rows_of(1, 0, outcome="compact_filter/timeout")),
    ],
)  # fmt: skip
def test_rollouts_of_fault_are_found_first(expected: str, rows: Sequence[Mapping[str, Any]]) -> None:
    assert names_of(run_of({}, rows))[0] == expected


def change_at(step: int, before: Sequence[Any], after: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the rows of `before` until a step, and then the rows of `after`."""
    return [row for row in before if row["step"] < step] + [row for row in after if row["step"] >= step]


@pytest.mark.parametrize(("size", "is_found"), [(2, True), (8, False)])
def test_small_groups_are_dead_while_reward_rises(size: int, is_found: bool) -> None:
    random = np.random.default_rng(0)
    rows = [
        {"step": step, "task": str(task), "group": (step, task), "reward": reward, "solved": reward}
        for step in range(STEPS)
        for task in range(16)
        for reward in random.binomial(1, 0.2 + step / 80, size=size)
    ]

    assert ("dead_groups" in names_of(run_of({}, rows))) == is_found


def test_late_rise_is_no_plateau() -> None:
    rise, flat = np.linspace(0, 0.6, 30), np.full(24, 0.6)
    noise = np.random.default_rng(0).normal(size=62) / 50
    steps = np.arange(62)
    found = []
    for end in (flat[:8], np.linspace(0.6, 0.75, 8)):
        metrics = {Column.REWARD: np.concatenate([rise, flat, end]) + noise}
        found.append(names_of(RunData(name="run", source="rllm", steps=steps, metrics=metrics)))

    assert found == [["plateau"], []]


def test_lost_tasks_are_not_too_hard() -> None:
    assert "tasks_too_hard" not in names_of(run_of({}, change_at(4, rows_of(1, 0), rows_of(0, 0))))


@pytest.mark.parametrize(("step", "is_found"), [(0, True), (20, False)])
def test_stuck_tasks_were_never_solved(step: int, is_found: bool) -> None:
    stuck = [row | {"task": "b", "group": 100 + row["step"]} for row in change_at(step, rows_of(1, 0), rows_of(0, 0))]

    assert ("stuck_tasks" in names_of(run_of({}, rows_of(1, 0) + stuck))) == is_found


@pytest.mark.parametrize(("reward", "expected"), [(0, True), (1, False)])
def test_truncation_with_high_reward_is_harmless(reward: float, expected: bool) -> None:
    rows = rows_of(1.1, 0, reward, 0, truncated=[0, 0, 1, 0])

    assert ("truncation" in names_of(run_of({}, rows))) == expected


@pytest.mark.parametrize("step", [15, 35])
def test_wrong_responses_with_full_reward_are_found(step: int) -> None:
    rows = change_at(step, rows_of(1, 0, 0, 0, solved=[1, 0, 0, 0]), rows_of(1, 1, 1, 0, solved=[1, 1, 0, 0]))

    assert "reward_without_solving" in names_of(run_of({}, rows))


def test_component_that_dominates_explains_constant_reward() -> None:
    before = rows_of(1.1, 1, 0.1, 0, solved=[1, 0, 1, 0], components=COMPONENTS)
    after = rows_of(1, 1, 1, 1, solved=0, components={"right": 0, "form": 1})

    assert names_of(run_of({}, change_at(25, before, after)))[:2] == ["dominant_component", "constant_reward"]


def test_finding_lists_tasks_and_rollouts() -> None:
    (finding, *_) = diagnose(run_of({}, rows_of(0, 0)), RULES).findings

    assert finding.evidence.tasks == ("a",)
    assert finding.evidence.rollouts == ((39, "39.0:a:0/0"),)


def test_rule_without_data_is_listed_with_columns() -> None:
    skipped = {rule.name: columns for rule, columns in diagnose(run_of({Column.REWARD: RISE}), RULES).skipped}

    assert skipped["kl_explosion"] == [Column.KL_REFERENCE]
    lacks = [Column.ROLLOUT_REWARD, Column.ROLLOUT_SOLVED, Column.ROLLOUT_COMPONENTS]
    assert skipped["dominant_component"] == lacks


def test_kl_of_first_tokens_is_found() -> None:
    run = run_of({}, token_kl={0: 1.0} | dict.fromkeys(range(1, 9), 0.01))

    assert names_of(run) == ["kl_at_start"]


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("the answer is 4 because 2 + 2 = 4", 0, 0.4),
        ("wait wait wait wait wait wait", 1, 1),
        ("first a sentence, then 1 1 1 1 1 1 1 1 1 1 1 1 1 1", 1, 1),
        ("12k12l12v12k12d12k12", SIMILAR, 0.9),
        ("aaaa", 0, 0),
        ("", 0, 0),
    ],
)
def test_repetition_continues_until_the_end(text: str, low: float, high: float) -> None:
    assert low <= repetition(text) <= high


@pytest.mark.parametrize(("first", "solved", "is_found"), [("no", 0, True), (None, 0, False), ("no", 1, False)])
def test_similar_pieces_are_new_and_wrong(first: str | None, solved: int, is_found: bool) -> None:
    similar = rows_of(*[0] * 16, text="12k12l12v12k12d12k12", solved=solved)
    before = [row | {"text": first or row["text"]} for row in similar]

    assert ("repeating_responses" in names_of(run_of({}, change_at(20, before, similar)))) == is_found


def test_few_equal_rewards_of_solved_run_are_right() -> None:
    rows = rows_of(*[1] * 24, 0)

    assert "constant_reward" not in names_of(run_of({}, rows))


def test_hard_tasks_explain_long_responses() -> None:
    easy = rows_of(1, 1, 1, 1, truncated=0)
    hard = [row | {"task": "b", "group": 100 + row["step"]} for row in rows_of(0, 0, 0, 0, truncated=[1, 1, 1, 0])]

    assert "truncation" not in names_of(run_of({}, easy + hard))
    assert "truncation" in names_of(run_of({}, easy + [row | {"task": "a"} for row in hard]))


@pytest.mark.parametrize(("order", "expected"), [(1, ["slower_steps"]), (7, [])])
def test_steps_that_slow_down_are_no_busy_machine(order: int, expected: list[str]) -> None:
    seconds = GROWTH[np.arange(STEPS) * order % STEPS]
    metrics = {Column.STEP_SECONDS: seconds, Column.TOKENS_PER_SECOND: 100 / seconds}

    assert names_of(run_of(metrics)) == expected


def test_stage_other_than_sampling_is_slow() -> None:
    stages = {"generate": FLAT, "reward": 2 * FLAT, "update": FLAT}

    assert names_of(run_of({Column.STEP_SECONDS: 4 * FLAT}, stages=stages)) == []
    assert names_of(run_of({Column.STEP_SECONDS: 3.5 * FLAT}, stages=stages)) == ["slow_stage"]


def test_noise_is_no_rise() -> None:
    random = np.random.default_rng(0)
    changes = [Series(np.arange(60), random.normal(size=60)).compare_ends() for _ in range(500)]

    assert sum(change.is_rise or change.is_fall for change in changes) <= 5
