"""What contracts tell authors of estimators, groupings and losses with one mistake each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from expecting import check_values
from torch import Tensor

from rllm_core.algorithms import segments
from rllm_core.algorithms.grouping import by_task_and_role
from rllm_core.contracts import AdvantageInput, Advantages, LossInput, NoParams
from rllm_core.data.types import Episode, TrajectoryGroup
from rllm_core.updates.losses import importance_ratio
from rllm_plugin_kit import EstimatorContract, LossContract

from .conftest import make_plugin

Function = Callable[..., Any]
STATE = "same_inputs_and_state_give_same_advantages"


SCOPE = "declared_scope_is_exact"


def spread(values: Any, inputs: AdvantageInput) -> Any:
    return segments.spread(values, inputs.group_offsets)


def centred(inputs: AdvantageInput) -> Any:
    values = inputs.rewards - spread(segments.means(inputs.rewards, inputs.group_offsets), inputs)
    return np.where(spread(segments.constant(inputs.rewards, inputs.group_offsets), inputs), 0.0, values)


def centres(inputs: AdvantageInput, params: NoParams) -> Advantages:
    return Advantages(values=centred(inputs))


def writes_into_its_inputs(inputs: AdvantageInput, params: NoParams) -> Advantages:
    inputs.rewards[:] -= 1.0
    return Advantages(values=inputs.rewards)


def changes_a_trajectory(inputs: AdvantageInput, params: NoParams) -> Advantages:
    for group in inputs.groups:
        group.trajectories[0].info["seen"] = True
    return centres(inputs, params)


def divides_by_the_deviation(inputs: AdvantageInput, params: NoParams) -> Advantages:
    with np.errstate(all="ignore"):
        deviations = segments.standard_deviations(inputs.rewards, inputs.group_offsets)
        return Advantages(values=centred(inputs) / spread(deviations, inputs))


def against_everybody(inputs: AdvantageInput, params: NoParams) -> Advantages:
    rewards = inputs.rewards
    equal = not len(rewards) or rewards.max() == rewards.min()
    return Advantages(values=np.zeros(len(rewards)) if equal else rewards - rewards.mean())


def minus(baseline: Callable[[Any, Any], Any]) -> Function:
    """Return an estimator that subtracts from the rewards a number per group."""
    return advantages_of(
        lambda inputs: (
            inputs.rewards - segments.spread(baseline(inputs.rewards, inputs.group_offsets), inputs.group_offsets)
        )
    )


def advantages_of(values: Callable[[AdvantageInput], Any], **fields: Any) -> Function:
    """Return an estimator advantages_of these advantages."""
    return lambda inputs, params: Advantages(values=values(inputs), **fields)


def divided(inputs: AdvantageInput) -> Any:
    """Divide each group, and fail if there is none."""
    parts = np.split(centred(inputs), inputs.group_offsets[1:-1])
    return np.concatenate([part / part.std() if part.any() else part for part in parts if part.size])


LEVEL = "advantages_are_finite_at_the_declared_level"


def with_a_running_mean() -> Function:
    seen: list[float] = []

    def estimate(inputs: AdvantageInput, params: NoParams) -> Advantages:
        seen.append(float(inputs.rewards.sum()))
        return Advantages(values=centred(inputs) * len(seen))

    return estimate


def test_state_between_calls_is_reported(complaint: Any) -> None:
    told = complaint(EstimatorContract, make_plugin("estimator", with_a_running_mean()), STATE)
    check_values(told, "state between calls", "random numbers")


class Forgetful:
    """A running baseline that checkpoints do not contain."""

    def __init__(self) -> None:
        self.baseline = 0.0

    def __call__(self, inputs: AdvantageInput, params: NoParams) -> Advantages:
        values = inputs.rewards - self.baseline
        self.baseline += float(inputs.rewards.sum())
        return Advantages(values=values)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_unsaved_state_is_reported(complaint: Any) -> None:
    told = complaint(EstimatorContract, make_plugin("estimator", Forgetful, keeps_state=True), STATE)
    check_values(told, "state_dict")


@pytest.mark.parametrize("scope", ["role", "batch"])
def test_a_scope_wider_than_needed_is_reported(complaint: Any, scope: str) -> None:
    told = complaint(EstimatorContract, make_plugin("estimator", centres, scope=scope), SCOPE)
    assert f"scope={scope!r}" in told
    assert complaint(EstimatorContract, make_plugin("estimator", against_everybody, scope=scope), SCOPE) == ""


def test_dependence_on_the_group_needs_scope_group(complaint: Any) -> None:
    assert "only the rewards" in complaint(
        EstimatorContract, make_plugin("estimator", centres, scope="trajectory"), SCOPE
    )


@pytest.mark.parametrize(
    ("fields", "told"), [({"needs": frozenset({"valeus"})}, "'valeus'"), ({"default_loss": "pppo"}, "'pppo'")]
)
def test_unknown_columns_and_losses_are_reported(complaint: Any, fields: dict[str, Any], told: str) -> None:
    assert told in complaint(
        EstimatorContract, make_plugin("estimator", centres, **fields), "declared_columns_and_loss_exist"
    )


COLUMNS = ["values", "old_logprobs", "ref_logprobs", "sum_pi_squared", "greedy_rewards"]


@pytest.mark.parametrize("column", [*COLUMNS, "step_rewards", "reward_components"])
def test_declared_needs_are_filled_with_finite_numbers(complaint: Any, column: str) -> None:
    seen = []

    def looks(inputs: AdvantageInput, params: NoParams) -> Advantages:
        seen.append(getattr(inputs, column))
        return centres(inputs, params)

    assert complaint(EstimatorContract, make_plugin("estimator", looks, needs=frozenset({column})), LEVEL) == ""
    assert seen
    assert all(np.isfinite(values).all() and values.any() for values in seen)


@pytest.mark.parametrize("column", COLUMNS)
def test_undeclared_columns_are_absent(complaint: Any, column: str) -> None:
    def looks(inputs: AdvantageInput, params: NoParams) -> Advantages:
        assert getattr(inputs, column) is None
        return centres(inputs, params)

    assert complaint(EstimatorContract, make_plugin("estimator", looks), LEVEL) == ""


def groups_of(change: Callable[[list[TrajectoryGroup]], Any]) -> Function:
    """Return a grouping that changes the groups by task and role."""
    return lambda episodes, params: change(by_task_and_role(episodes, params))


ONE = "every_trajectory_is_in_exactly_one_group"


def also_by_task(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    everybody = [trajectory for episode in episodes for trajectory in episode.trajectories]
    return [*by_task_and_role(episodes, params), TrajectoryGroup(group_id="all:agent", trajectories=everybody)]


def one_entry_per_group(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    groups = by_task_and_role(episodes, params)
    return [TrajectoryGroup(group_id=g.group_id, trajectories=g.trajectories, metadata=g.metadata[:1]) for g in groups]


def keeps_the_episode(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    return [
        TrajectoryGroup(group_id=e.id, trajectories=e.trajectories, metadata=[{"episode": e}] * len(e.trajectories))
        for e in episodes
    ]


def in_fours(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    everybody = [trajectory for episode in episodes for trajectory in episode.trajectories]
    return [
        TrajectoryGroup(group_id=f"{start}:agent", trajectories=everybody[start : start + 4])
        for start in range(0, len(everybody), 4)
    ]


def empties_episodes(episodes: Sequence[Episode], params: NoParams) -> list[TrajectoryGroup]:
    groups = by_task_and_role(episodes, params)
    for episode in episodes:
        episode.trajectories.clear()
    return groups


def policy_loss(inputs: LossInput, params: NoParams) -> Tensor:
    return -inputs.advantages * importance_ratio(inputs)


def changes_advantages(inputs: LossInput, params: NoParams) -> Tensor:
    inputs.advantages.mul_(0.5)
    return policy_loss(inputs, params)


def whitens_over_what_is_there(inputs: LossInput, params: NoParams) -> Tensor:
    centred = inputs.advantages - inputs.advantages.sum() / max(len(inputs.advantages), 1)
    return -centred * importance_ratio(inputs)


def masked_by_position(inputs: LossInput, params: NoParams) -> Tensor:
    generator = torch.Generator().manual_seed(inputs.seed)
    return policy_loss(inputs, params) * (torch.rand(len(inputs.logprobs), generator=generator) < 0.5)


def from_the_sampler(inputs: LossInput) -> Tensor:
    return -inputs.advantages * (inputs.logprobs - inputs.sampling_logprobs).clamp(-20, 20).exp()  # type: ignore[operator]


def loss_of(function: Callable[[LossInput], Any]) -> Function:
    """Return a loss loss_of these inputs."""
    return lambda inputs, params: function(inputs)


def loss_like(function: Callable[[Tensor], Tensor]) -> Function:
    """Return a loss that changes the losses loss_of a policy_loss one."""
    return lambda inputs, params: function(policy_loss(inputs, params))


FINITE = "it_returns_one_finite_loss_per_token"


GRADIENT = "gradient_reaches_log_probs_and_is_finite"


SURROGATE = loss_of(lambda inputs: -inputs.advantages * importance_ratio(inputs).detach() * inputs.logprobs)


def nan_in_the_branch_not_taken(inputs: LossInput, params: NoParams) -> Tensor:
    log_ratio = inputs.logprobs - inputs.old_logprobs
    return -inputs.advantages * torch.where(log_ratio.abs() > 20, torch.ones_like(log_ratio), log_ratio.exp())


def test_a_declared_surrogate_gradient_is_accepted(complaint: Any) -> None:
    test = "gradient_matches_the_numeric_slope"
    assert complaint(LossContract, make_plugin("loss", SURROGATE), test, gradient="surrogate") == ""


def test_unknown_needs_are_reported(complaint: Any) -> None:
    told = complaint(
        LossContract, make_plugin("loss", policy_loss, needs=frozenset({"ref_logprob"})), "declared_needs_exist"
    )
    assert "'ref_logprobs'" in told


def test_declared_needs_are_filled(complaint: Any) -> None:
    def towards_the_reference(inputs: LossInput, params: NoParams) -> Tensor:
        assert inputs.ref_logprobs is not None
        return policy_loss(inputs, params) + (inputs.logprobs - inputs.ref_logprobs).square()

    assert "AssertionError" in complaint(LossContract, make_plugin("loss", towards_the_reference), FINITE)
    assert (
        complaint(LossContract, make_plugin("loss", towards_the_reference, needs=frozenset({"ref_logprobs"})), FINITE)
        == ""
    )


MISTAKES: dict[str, list[tuple[Any, str, str]]] = {
    "estimator": [
        (writes_into_its_inputs, LEVEL, "`inputs.rewards.copy()`"),
        (changes_a_trajectory, "it_does_not_change_its_inputs", "`inputs.groups`"),
        (
            advantages_of(lambda inputs: segments.means(inputs.rewards, inputs.group_offsets)),
            LEVEL,
            "given ragged groups",
        ),
        (divides_by_the_deviation, "smallest_batches_work", "given one group"),
        (advantages_of(lambda inputs: np.zeros(len(inputs.loss_mask)), level="token"), LEVEL, "'trajectory'"),
        (lambda inputs, params: centred(inputs), LEVEL, "Return Advantages(values=…, level=…)"),
        (minus(segments.means), "equal_rewards_give_zero_advantages", "Compare the rewards"),
        (minus(lambda rewards, offsets: rewards[offsets[:-1]]), "order_of_trajectories", "Return values in"),
        (against_everybody, SCOPE, "Declare a wider"),
        (
            advantages_of(lambda inputs: centred(inputs) / np.maximum(np.diff(inputs.token_offsets), 1)),
            "prompt_length",
            "`inputs.loss_mask`",
        ),
        (advantages_of(divided), "smallest_batches_work", "ValueError"),
        (advantages_of(centred, returns=np.zeros(2)), LEVEL, "Returns are a"),
    ],
    "grouping": [
        (
            groups_of(lambda groups: [group for group in groups if group.group_role != "judge"]),
            ONE,
            "Put every trajectory",
        ),
        (lambda episodes, params: by_task_and_role(copy.deepcopy(episodes), params), ONE, "trajectories that are"),
        (also_by_task, ONE, "Put every trajectory"),
        (one_entry_per_group, "metadata_has", "`rllm_core.algorithms.grouping.describe(episode)`"),
        (keeps_the_episode, "metadata_has_one_entry_per_trajectory", "metadata that is"),
        (in_fours, "order_of_episodes_has_no_effect", "Group by properties"),
        (empties_episodes, "it_does_not_change_episodes", "changes the episodes"),
        (groups_of(lambda groups: groups or None), "no_episodes_give_no_groups", "returned None. Return"),
        (lambda episodes, params: [episode.trajectories[0] for episode in episodes], ONE, "IndexError"),
        (
            groups_of(lambda groups: [*groups, TrajectoryGroup(group_id="rest:agent", trajectories=[])]),
            "no_episodes",
            "returns 1 groups",
        ),
    ],
    "loss": [
        (loss_like(torch.mean), FINITE, "rllm.algorithm.loss_agg_mode"),
        (
            loss_of(lambda inputs: -inputs.advantages * (inputs.logprobs - inputs.old_logprobs).exp()),
            "extreme_ratios",
            "Bound ratios before",
        ),
        (loss_of(lambda inputs: inputs.advantages * inputs.logprobs.clamp_(max=-0.01)), GRADIENT, "It writes into"),
        (changes_advantages, "it_does_not_change_its_inputs", "`advantages`"),
        (loss_like(torch.detach), GRADIENT, "does not depend"),
        (loss_of(lambda inputs: -inputs.advantages + 0 * inputs.logprobs), GRADIENT, "has a gradient"),
        (SURROGATE, "gradient_matches_the_numeric_slope", "`gradient = 'surrogate'`"),
        (whitens_over_what_is_there, "micro_batches_do_not_change_losses", "gives a row"),
        (loss_like(lambda losses: losses * (torch.rand_like(losses) < 0.5)), "same_inputs", "draws from the"),
        (masked_by_position, "micro_batches_do_not_change_losses", "inputs.seed"),
        (loss_like(lambda losses: losses.double()), FINITE, "torch.float64"),
        (loss_of(from_the_sampler), "optional_columns_may_be_absent", "sampling_logprobs"),
        (
            loss_of(
                lambda inputs: from_the_sampler(inputs) if inputs.sampling_logprobs is not None else -inputs.logprobs
            ),
            "missing_sampler_log_probs_work",
            "sampling_logprobs",
        ),
        (loss_like(lambda losses: losses - 0 * losses.max()), "no_tokens_give_no_losses", "RuntimeError"),
        (nan_in_the_branch_not_taken, "extreme_ratios_stay_finite", "torch.where"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "made", "test", "said"), [(kind, *row) for kind, rows in MISTAKES.items() for row in rows]
)
def test_contract_reports_the_mistake(kind: str, made: Any, test: str, said: str, reported: Any) -> None:
    assert said in reported(kind, made, test)
