"""A run's episodes under several estimators: as in training, step by step, and with nothing written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expecting import expect_error

from rllm_core.contracts.estimator import AdvantageInput, Advantages, EstimatorPlugin
from rllm_core.contracts.plugin import NoParams
from rllm_core.data.types import TerminationReason
from rllm_core.errors import ConfigError, RewardError
from rllm_core.plugins.registry import Registry
from rllm_view.rescoring.rescore import Rescored
from rllm_view.rescoring.source import EpisodesError
from rllm_view.rescoring.summary import reproduction_of, summaries_of

Rescore = Callable[..., Rescored]
Keep = Callable[..., Path]


def _advantages(result: Rescored, setup: int) -> dict[tuple[int, str], list[float]]:
    return {(group.step, group.group_id): group.advantages[setup].round(4).tolist() for group in result.groups}


def test_every_trajectory_has_its_advantage_under_every_estimator(rescored: Rescore, keep: Keep) -> None:
    keep(0, {"t": [0, 0, 0, 1], "u": [1, 1, 1, 1]})
    result = rescored(estimators=["grpo", "rloo", "reinforce"])
    assert _advantages(result, 0)[0, "t:agent"] == pytest.approx([-0.5773, -0.5773, -0.5773, 1.732], abs=1e-3)
    assert _advantages(result, 1)[0, "t:agent"] == pytest.approx([-1 / 3, -1 / 3, -1 / 3, 1], abs=1e-3)
    assert _advantages(result, 2)[0, "t:agent"] == [0, 0, 0, 1]
    assert [group.signal.tolist() for group in result.groups] == [[True, True, True], [False, False, True]]
    assert [member.episode for member in result.groups[0].members] == [f"t:{index}" for index in range(4)]


def test_estimators_of_wider_scope_see_one_training_step_at_a_time(rescored: Rescore, keep: Keep) -> None:
    keep(0, {"t": [0, 1], "u": [0, 1]})
    keep(1, {"t": [0, 1], "u": [0, 9]})
    result = rescored(estimators=["grpo", "reinforce_plus_plus_baseline"])
    found = _advantages(result, 1)
    assert found[0, "t:agent"] == pytest.approx([-1, 1], abs=1e-3)
    assert found[1, "t:agent"] == pytest.approx([-0.1562, 0.1562], abs=1e-3)


def test_an_unknown_estimator_is_compared_like_others(rescored: Rescore, keep: Keep) -> None:
    keep(0, {"t": [0, 1], "u": [0, 1, 1]})
    result = rescored(estimators=["grpo", "stranger"])
    assert _advantages(result, 1) == {(0, "t:agent"): [0, 0.5], (0, "u:agent"): [0, 0.5, 0.5]}
    (reference, other) = summaries_of(result)[0].setups
    assert (reference.agreement, other.estimator) == (None, "stranger")
    assert other.agreement is not None
    assert other.agreement.signs.lost == 0.4


def test_roles_are_compared_apart(rescored: Rescore, keep: Keep) -> None:
    keep(0, {"t": [0, 1]}, roles=("solver", "judge"))
    result = rescored(estimators=["grpo"], role_estimators={"judge": "reinforce"})
    assert [setup.label for setup in result.setups] == ["grpo", "grpo, judge: reinforce"]
    solver, judge = (summary.setups[1] for summary in summaries_of(result))
    assert solver.agreement is not None
    assert (solver.estimator, solver.agreement.largest) == ("grpo", ())
    assert judge.agreement is not None
    assert judge.agreement.signs.lost == 0.5


def test_what_the_run_was_configured_with_holds(rescored: Rescore, keep: Keep, configure: Callable[..., None]) -> None:
    keep(0, {"t": [0, 1, None]})
    settings: dict[str, Any] = {"adv_estimator": "rloo", "on_missing_reward": "drop"}
    configure({"rllm": {"algorithm": settings, "transform": {"grouping": "task_role"}}})
    assert _advantages(rescored(), 0) == {(0, "t:agent"): [-1, 1]}


def test_a_missing_reward_is_an_error_that_says_what_to_type(rescored: Rescore, keep: Keep) -> None:
    keep(0, {"t": [0, None]})
    with expect_error(RewardError, "missing-reward", "--on-missing-reward"):
        rescored()
    assert _advantages(rescored(on_missing_reward="zero"), 0) == {(0, "t:agent"): [0, 0]}


def test_attempts_that_the_run_masked_are_masked(rescored: Rescore, keep: Keep, configure: Callable[..., None]) -> None:
    keep(0, {"t": [0, 1]}, reason=TerminationReason.TIMEOUT)
    configure({"rllm": {"compact_filtering": {"enable": True}}})
    result = rescored()
    assert [step.skip_reason for step in result.steps] == ["everything_masked"]
    assert summaries_of(result) == []


def test_a_run_without_the_filter_is_replayed_without_it(
    rescored: Rescore, keep: Keep, configure: Callable[..., None]
) -> None:
    keep(0, {"t": [0, 1]}, reason=TerminationReason.TIMEOUT)
    pipeline = {"remove": ["compact_filter"], "insert": [{"stage": "not_here", "after": "group"}]}
    configure({"rllm": {"compact_filtering": {"enable": True}, "pipeline": pipeline}})
    result = rescored()
    assert len(result.groups) == 1
    assert result.third_party_stages == ("not_here",)


def test_no_group_is_rejected_unless_asked_for(rescored: Rescore, keep: Keep, configure: Callable[..., None]) -> None:
    keep(0, {"t": [0, 1], "u": [1, 1]})
    configure({"rllm": {"rejection_sample": {"enable": True, "mode": "group"}}})
    assert len(rescored().groups) == 2
    assert len(rescored(rejection="group").groups) == 1


def test_groups_that_wait_for_a_later_step_are_counted_there_under_their_own_names(
    rescored: Rescore, keep: Keep
) -> None:
    keep(0, {"t": [1, 1]})
    keep(1, {"u": [0, 1]})
    result = rescored(rejection="episode")
    assert [step.skip_reason for step in result.steps] == ["waiting_for_more_groups", ""]
    assert [(group.step, group.members[1].episode) for group in result.groups] == [(1, "t:1"), (1, "u:1")]


def test_advantages_divided_by_turns_are_so_here_too(
    rescored: Rescore, keep: Keep, configure: Callable[..., None]
) -> None:
    keep(0, {"t": [0, 1]}, turns=4)
    assert _advantages(rescored(), 0) == {(0, "t:agent"): [-1, 1]}
    configure({"rllm": {"stepwise_advantage": {"enable": True, "normalize_by_steps": True}}})
    assert _advantages(rescored(), 0) == {(0, "t:agent"): [-0.25, 0.25]}


def test_advantages_that_came_with_a_group_are_kept_if_the_run_kept_them(
    rescored: Rescore, keep: Keep, configure: Callable[..., None]
) -> None:
    keep(0, {"t": [0, 1]}, advantage=0.75)
    assert _advantages(rescored(), 0) == {(0, "t:agent"): [-1, 1]}
    configure({"rllm": {"algorithm": {"use_precomputed_advantage": True}}})
    result = rescored(estimators=["grpo", "rloo"])
    assert _advantages(result, 0) == _advantages(result, 1) == {(0, "t:agent"): [0.75, 0.75]}


def test_trajectories_that_sampled_nothing_have_no_advantage(rescored: Rescore, keep: Keep) -> None:
    keep(0, {"t": [0, 1]}, lengths={"t": [0, 3]})
    group = rescored().groups[0]
    assert np.isnan(group.advantages[0]).tolist() == [True, False]


@pytest.fixture
def greedy(registry: Registry) -> None:
    """An estimator that compares with greedy attempts."""

    def estimate(inputs: AdvantageInput, params: NoParams) -> Advantages:
        assert inputs.greedy_rewards is not None
        return Advantages(values=inputs.rewards - inputs.greedy_rewards)

    registry.add(
        EstimatorPlugin(
            name="greedy",
            summary="For tests.",
            params=NoParams,
            load=lambda: estimate,
            scope="trajectory",
            needs=frozenset({"greedy_rewards"}),
        )
    )


@pytest.mark.usefixtures("greedy")
def test_attempts_without_a_greedy_reward_left_the_run_and_are_left_out(
    rescored: Rescore, keep: Keep, configure: Callable[..., None]
) -> None:
    keep(0, {"t": [0, 1], "u": [0, 1]}, greedy={"t": 0.25})
    keep(1, {"u": [0, 1]})
    configure({"rllm": {"algorithm": {"adv_estimator": "greedy"}}})
    result = rescored(estimators=["grpo"])
    assert _advantages(result, 0) == {(0, "t:agent"): [-0.25, 0.75]}
    assert [step.skip_reason for step in result.steps] == ["", "no_greedy_rewards"]


@pytest.mark.usefixtures("greedy")
def test_greedy_attempts_that_were_never_made_are_said(rescored: Rescore, keep: Keep) -> None:
    keep(4, {"t": [0, 1]})
    with expect_error(ConfigError, "missing-greedy-reward", "'greedy'"):
        rescored(estimators=["grpo", "greedy"])


def test_a_task_that_came_round_twice_is_compared_within_each_round(rescored: Rescore, keep: Keep) -> None:
    keep(0, {"t": [0, 1]}, {"t": [5, 9], "u": [0, 1]})
    result = rescored(estimators=["grpo", "reinforce_plus_plus_baseline"])
    assert [group.rewards.tolist() for group in result.groups] == [[0, 1], [5, 9], [0, 1]]
    assert [group.advantages[0].round(3).tolist() for group in result.groups] == [[-1, 1]] * 3
    # Of the scope of a role: all rounds of the step together.
    assert result.groups[1].advantages[1, 1] == 4 * result.groups[2].advantages[1, 1]
    assert result.steps[0].episodes == 6


def test_rejection_that_asked_for_more_is_offered_what_it_got(rescored: Rescore, keep: Keep) -> None:
    keep(0, {"t": [0, 1], "u": [1, 1]}, {"t": [0, 2], "v": [0, 3]})
    keep(1, {"w": [0, 1], "x": [1, 1]})
    result = rescored(rejection="dynamic")
    assert [(group.step, group.rewards.max()) for group in result.groups] == [(0, 1), (0, 2), (1, 3), (1, 1)]


def test_rounds_that_rejection_does_not_ask_for_count_all_the_same(rescored: Rescore, keep: Keep) -> None:
    keep(0, {"t": [0, 1]}, {"t": [2, 2]}, {"t": [0, 3]})
    assert [group.rewards.max() for group in rescored(rejection="group").groups] == [1, 3]


def test_files_without_a_whole_episode_are_an_error(rescored: Rescore, keep: Keep) -> None:
    keep(0, {})
    with expect_error(EpisodesError, "no-episodes"):
        rescored()


def test_nothing_is_written(rescored: Rescore, keep: Keep, run: Path) -> None:
    keep(0, {"t": [0, 1]})

    def state() -> dict[str, str]:
        files = [path for path in sorted(run.rglob("*")) if path.is_file()]
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = state()
    rescored(estimators=["grpo", "rloo"])
    assert state() == before


# Reproduction


def _log(run: Path, result: Rescored, change: float = 0.0) -> None:
    """Metrics as a run would have left them."""
    lines = []
    for step in result.steps:
        metrics = {name: value + change for name, value in step.metrics["grpo"].items()}
        lines += [{"step": step.step, **metrics}, {"step": step.step, "val/t/pass@1": 1.0}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_runs_own_advantages_are_proven_by_its_metrics(rescored: Rescore, keep: Keep, run: Path) -> None:
    for step in range(2):
        keep(step, {"t": [0, 1, step]})
    _log(run, rescored())
    found = reproduction_of(rescored(estimators=["rloo"]))
    assert found is not None
    assert (found.steps, found.equal, found.first_deviation) == (2, 2, None)


def test_advantages_that_the_run_did_not_have_are_told_by_its_metrics(rescored: Rescore, keep: Keep, run: Path) -> None:
    keep(3, {"t": [0, 1, 1]})
    _log(run, rescored(), change=0.25)
    found = reproduction_of(rescored())
    assert found is not None
    assert found.equal == 0
    assert found.first_deviation is not None
    assert (found.first_deviation.step, found.first_deviation.metric) == (3, "advantage/agent/fraction_zero")


@pytest.mark.parametrize(
    "request_", [{"estimators": ["rloo", "reinforce"]}, {"rejection": "group"}, {"on_missing_reward": "drop"}]
)
def test_other_estimators_or_rules_than_the_runs_prove_nothing(
    rescored: Rescore, keep: Keep, run: Path, request_: dict[str, Any]
) -> None:
    keep(0, {"t": [0, 1]})
    _log(run, rescored())
    assert reproduction_of(rescored(**request_)) is None
