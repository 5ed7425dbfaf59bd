"""From an estimator's result to one advantage per token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from expecting import expect_error
from places import without_place
from plain_groups import make_groups

from rllm_core.algorithms.estimation import EstimatorChoice, PrecomputedAdvantages, divide_by_steps, estimate
from rllm_core.contracts import AdvantageInput, Advantages, EstimatorPlugin, NoParams, PluginChoice, Registered
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Step, Trajectory, TrajectoryGroup
from rllm_core.errors import AdvantageError
from rllm_core.schema.algorithm_sections import AlgorithmSection

EstimatorOf = Callable[[str], EstimatorChoice]


def _chosen(function: Callable[[AdvantageInput], Any], level: Any = "trajectory", **fields: Any) -> EstimatorChoice:
    record = EstimatorPlugin(
        **{"name": "mine", "summary": "Mine.", "level": level, **fields},
        load=lambda: lambda inputs, params: function(inputs),
    )
    return PluginChoice(registered=Registered(plugin=record, distribution="tests", version="0"), params=NoParams())


def _always(values: Any, level: Any = "trajectory") -> EstimatorOf:
    return lambda role: _chosen(lambda inputs: Advantages(values=values, level=level), level)


def _rewards(inputs: AdvantageInput) -> Advantages:
    return Advantages(values=inputs.rewards)


def _group(*trajectories: Trajectory, group_id: str = "t:agent") -> TrajectoryGroup:
    return TrajectoryGroup(group_id=group_id, trajectories=list(trajectories))


@pytest.mark.parametrize(
    ("order", "level", "values", "expected"),
    [
        ("t", "trajectory", [0.5], [0, 0, 0.5, 0, 0.5, 0.5]),
        ("t", "step", [0.5, -2], [0, 0, 0.5, 0, -2, -2]),
        ("t", "token", [1, 2, 3, 4, 5, 6], [0, 0, 3, 0, 5, 6]),
        # A rewritten history has two rows.
        ("tr", "trajectory", [7, 8], [0, 0, 7, 0, 7, 7, 0, 8, 0, 8, 0, 0, 8, 8]),
        ("rt", "step", [1, 2, 3, 4, 5], [0, 1, 0, 2, 0, 0, 3, 3, 0, 0, 4, 0, 5, 5]),
        # Steps in another order than their tokens.
        ("TR", "step", [2, 1, 30, 20, 10], [0, 0, 1, 0, 2, 2, 0, 10, 0, 20, 0, 0, 30, 30]),
        # A step without sampled tokens.
        ("ts", "step", [1, 2, 99], [0, 0, 1, 0, 2, 2]),
    ],
)
def test_advantages_reach_the_sampled_tokens_of_their_level(
    two_turns: Trajectory, rewritten: Trajectory, order: str, level: str, values: list[float], expected: list[float]
) -> None:
    silent = Trajectory("agent", [Step([8, 8], [])])
    if order.isupper():
        two_turns.steps.reverse()
        rewritten.steps.reverse()
    given = {"t": two_turns, "r": rewritten, "s": silent}
    advantages = estimate(build_batch([_group(*(given[each] for each in order.lower()))]), _always(values, level))
    assert advantages.advantages.tolist() == expected
    assert advantages.advantages.dtype == np.float32


def test_baselines_belong_to_their_estimators_trajectories(two_turns: Trajectory) -> None:
    groups = [_group(two_turns), _group(two_turns, group_id="t:judge"), _group(two_turns, two_turns)]
    told = _chosen(lambda inputs: Advantages(values=inputs.rewards, baselines=np.arange(len(inputs.rewards)) + 0.5))
    silent = _chosen(_rewards)

    estimates = estimate(build_batch(groups), lambda role: told if role == "agent" else silent)

    assert estimates.baselines.tolist() == pytest.approx([0.5, np.nan, 1.5, 2.5], nan_ok=True)
    assert estimates.estimators == ("mine", "mine", "mine")


def test_trajectories_without_tokens_count_and_get_nothing(two_turns: Trajectory) -> None:
    silent = Trajectory("agent", [Step([1, 2], [])], reward=-1.0)
    batch = build_batch([_group(silent, two_turns, Trajectory("agent", reward=3.0))])
    seen: list[AdvantageInput] = []

    def remember(inputs: AdvantageInput) -> Advantages:
        seen.append(inputs)
        return Advantages(values=inputs.rewards)

    assert estimate(batch, lambda role: _chosen(remember)).advantages.tolist() == [0, 0, 1, 0, 1, 1]
    assert seen[0].rewards.tolist() == [-1, 1, 3]
    assert seen[0].response_lengths.tolist() == [0, 3, 0]
    assert seen[0].token_offsets.tolist() == [0, 0, 6, 6]
    assert seen[0].step_offsets.tolist() == [0, 1, 3, 3]


def test_estimator_is_called_once_for_each_role() -> None:
    solver, judge = make_groups([[1, 0], [2, 0]], role="solver"), make_groups([[5], [6]], role="judge")
    batch = build_batch([solver[0], judge[0], solver[1], judge[1], _group(group_id="t:critic")])
    settings = AlgorithmSection(eps_clip=0.125)
    calls: list[tuple[str, list[float]]] = []

    def estimator_of(role: str) -> EstimatorChoice:
        def run(inputs: AdvantageInput) -> Advantages:
            calls.append((role, inputs.rewards.tolist()))
            assert inputs.algorithm_config is settings
            return Advantages(values=inputs.rewards * (10 if role == "judge" else 1))

        return _chosen(run)

    advantages = estimate(batch, estimator_of, algorithm_config=settings).advantages
    assert calls == [("solver", [1, 0, 2, 0]), ("judge", [5, 6]), ("critic", [])]
    assert advantages[batch.row_offsets[1:] - 1].tolist() == [1, 0, 50, 2, 0, 60]


def test_no_groups_give_no_advantages() -> None:
    def nobody(role: str) -> EstimatorChoice:
        raise AssertionError("there is no role to estimate for")

    batch = build_batch([])
    estimates = estimate(batch, nobody)
    assert (estimates.advantages.tolist(), estimates.returns) == ([], None)
    assert divide_by_steps(batch, estimates.advantages).tolist() == []


def _of(values: Any = (1.0, 0.0), level: Any = "trajectory", **fields: Any) -> EstimatorChoice:
    return _chosen(lambda inputs: Advantages(values=values, level=level, **fields), level)


def _exit(inputs: AdvantageInput) -> Advantages:
    raise SystemExit(0)


UNUSED_NAN = [np.nan, 0, 1, 1, 0, 0, 1, 1]
"""The NaN is at a token that was not sampled."""


@pytest.mark.parametrize(
    ("estimator", "code", "values"),
    [
        (_of([1.0]), "bad-estimator-result", ["(1,)", "(2,)"]),
        (_of([[1.0, 2.0]]), "bad-estimator-result", ["(1, 2)", "(2,)"]),
        (_of(1.0), "bad-estimator-result", ["(2,)"]),
        (_of([1.0] * 3, "step"), "bad-estimator-result", ["(3,)", "(2,)"]),
        (_of([1.0] * 4, "token"), "bad-estimator-result", ["(4,)", "(8,)"]),
        (_of([np.nan, 1.0]), "advantages-not-finite", ["1"]),
        (_of([np.inf, -np.inf]), "advantages-not-finite", ["2"]),
        (_of([1e39, 0.0]), "advantages-not-finite", ["1"]),
        (_of(UNUSED_NAN, "token"), "advantages-not-finite", ["1"]),
        (_of([[1.0], [1.0, 2.0]]), "bad-estimator-result", []),
        (_of(["high", "low"]), "bad-estimator-result", []),
        (_of([1.0, 2.0], "turn"), "bad-estimator-result", []),
        (_of(baselines=np.zeros(3)), "bad-estimator-result", ["(3,)", "(2,)"]),
        (_of(returns=np.zeros(2)), "bad-estimator-result", ["(2,)"]),
        (_of(returns=np.zeros((8, 1))), "bad-estimator-result", ["(8, 1)"]),
        (_of(returns=np.full(8, np.nan)), "advantages-not-finite", ["8 returns"]),
        (_of(returns=np.append(np.zeros(7), 1e39)), "advantages-not-finite", ["1 returns"]),
        (_chosen(lambda inputs: None), "bad-estimator-result", ["None"]),
        (_chosen(lambda inputs: np.zeros(2)), "bad-estimator-result", []),
        (_chosen(lambda inputs: ([0.0, 0.0], [0.0, 0.0])), "bad-estimator-result", []),
        (_chosen(_exit), "plugin-failed", ["SystemExit: 0"]),
    ],
)
def test_unusable_results_of_estimators_are_errors(estimator: EstimatorChoice, code: str, values: list[str]) -> None:
    batch = build_batch(make_groups([[1, 0]], role="solver"))
    with expect_error(AdvantageError, code, *values, "'mine'", "'solver'"):
        estimate(batch, lambda role: estimator)


def test_failing_estimator_is_named_with_its_role() -> None:
    def spoil(inputs: AdvantageInput) -> Advantages:
        inputs.rewards[0] = 0.0
        raise AssertionError("never reached")

    batch = build_batch(make_groups([[1, 0]], role="solver"))
    with pytest.raises(AdvantageError) as caught:
        estimate(batch, lambda role: _chosen(spoil))
    message = "estimator 'mine' for role 'solver' failed: ValueError: assignment destination is read-only."
    assert without_place(caught.value.message) == message
    assert isinstance(caught.value.__cause__, ValueError)
    assert "read-only" in caught.value.hint


def test_the_batch_is_left_writable_and_unchanged() -> None:
    batch = build_batch(make_groups([[1, 0]]))
    before = batch.loss_mask.copy()
    estimate(batch, _always([1, 0]))
    assert np.array_equal(batch.loss_mask, before)
    assert batch.loss_mask.flags.writeable


def test_advantage_is_divided_by_its_trajectorys_steps(rewritten: Trajectory, two_turns: Trajectory) -> None:
    silent = Trajectory("agent", [Step([1, 2], [])], reward=-1.0)
    batch = build_batch([_group(two_turns, silent, Trajectory("agent", reward=0.0)), _group(rewritten)])
    divided = divide_by_steps(batch, estimate(batch, _always([1.0, 9.0, 9.0, 6.0])).advantages)
    # Two steps in one row; nothing said; no steps at all; three steps in two rows.
    assert divided.tolist() == [0, 0, 0.5, 0, 0.5, 0.5, 0, 2, 0, 2, 0, 0, 2, 2]
    assert divided.dtype == np.float32


def test_steps_together_weigh_as_much_as_trajectory() -> None:
    long, short = Trajectory("agent", reward=0.0), Trajectory("agent", reward=0.0)
    for turn in range(4):
        long.add_step([*long.tokens.ids, 7], [turn], [-1.0])
    short.add_step([7], [9], [-1.0])
    batch = build_batch([_group(long, short)])
    divided = divide_by_steps(batch, estimate(batch, _always([3.0, 3.0])).advantages)
    assert [divided[batch.row_offsets[row] : batch.row_offsets[row + 1]].sum() for row in (0, 1)] == [3.0, 3.0]


def test_undeclared_level_is_an_error_with_both_levels(two_turns: Trajectory) -> None:
    steps = _chosen(lambda inputs: Advantages(values=inputs.step_rewards, level="step"), "trajectory")
    with pytest.raises(AdvantageError, match=r"'mine' for role 'agent' returned step advantages; .*level='trajectory'"):
        estimate(build_batch([_group(two_turns)]), lambda role: steps)


@pytest.fixture
def three_roles() -> TokenBatch:
    """Two tokens sampled by each trajectory, at the end of its four."""
    by_role = [make_groups([[reward]], role=role)[0] for role, reward in (("a", 1), ("b", 2), ("c", 3))]
    return build_batch([*by_role, *make_groups([[4]], role="a")])


def test_estimator_of_scope_batch_is_called_once(three_roles: TokenBatch) -> None:
    calls: list[list[float]] = []

    def run(inputs: AdvantageInput) -> Advantages:
        calls.append(inputs.rewards.tolist())
        return Advantages(values=10 * inputs.rewards)

    shared, other = _chosen(run, scope="batch"), _chosen(run, scope="batch", name="other")
    advantages = estimate(three_roles, lambda role: other if role == "b" else shared).advantages
    assert calls == [[1, 3, 4], [2]]
    assert advantages[three_roles.row_offsets[1:] - 1].tolist() == [10, 20, 30, 40]


@pytest.mark.parametrize("scope", ["trajectory", "group", "role"])
def test_estimator_of_smaller_scope_is_called_per_role(three_roles: TokenBatch, scope: str) -> None:
    calls: list[list[float]] = []

    def run(inputs: AdvantageInput) -> Advantages:
        calls.append(inputs.rewards.tolist())
        return _rewards(inputs)

    shared = _chosen(run, scope=scope)
    estimate(three_roles, lambda role: shared)
    assert calls == [[1, 4], [2], [3]]


def test_error_of_shared_estimator_names_all_roles(three_roles: TokenBatch) -> None:
    shared = _chosen(lambda inputs: Advantages(values=np.zeros(1)), scope="batch")
    with pytest.raises(AdvantageError, match=r"^estimator 'mine' for role 'a' and 'b' and 'c' returned"):
        estimate(three_roles, lambda role: shared)


def _with_returns(inputs: AdvantageInput) -> Advantages:
    returns = np.arange(len(inputs.loss_mask), dtype=np.float64)
    return Advantages(values=inputs.rewards, returns=returns)


def test_returns_are_nan_outside_their_roles_tokens(three_roles: TokenBatch) -> None:
    returns = estimate(three_roles, lambda role: _chosen(_with_returns if role == "a" else _rewards)).returns
    assert returns is not None
    assert returns.dtype == np.float32
    assert returns[:4].tolist() == [0, 1, 2, 3]
    assert np.isnan(returns[4:12]).all()
    assert returns[12:].tolist() == [4, 5, 6, 7]


def test_groups_with_own_advantages_are_omitted() -> None:
    batch = build_batch(make_groups([[1], [2], [3]]))
    own = np.where(np.repeat([False, True, False], 4) & batch.loss_mask, 0.125, 0).astype(np.float32)
    calls: list[list[float]] = []

    def run(inputs: AdvantageInput) -> Advantages:
        calls.append(inputs.rewards.tolist())
        return _with_returns(inputs)

    precomputed = PrecomputedAdvantages(groups=np.array([False, True, False]), advantages=own)
    estimates = estimate(batch, lambda role: _chosen(run), precomputed=precomputed)
    assert calls == [[1, 3]]
    assert estimates.advantages.tolist() == [0, 0, 1, 1, 0, 0, 0.125, 0.125, 0, 0, 3, 3]
    assert estimates.returns is not None
    assert np.isnan(estimates.returns[4:8]).all()


def test_role_with_all_advantages_needs_no_call(three_roles: TokenBatch) -> None:
    def never(inputs: AdvantageInput) -> Advantages:
        raise AssertionError("there is nothing left to estimate")

    own = three_roles.loss_mask.astype(np.float32)
    precomputed = PrecomputedAdvantages(groups=np.ones(4, np.bool_), advantages=own)
    estimates = estimate(three_roles, lambda role: _chosen(never), precomputed=precomputed)
    assert estimates.advantages.tolist() == own.tolist()
