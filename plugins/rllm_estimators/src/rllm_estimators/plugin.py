"""What rllm-estimators offers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from rllm_core.contracts.estimator import EstimatorPlugin
from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.plugin import NoParams
from rllm_core.plugins import hookimpl
from rllm_estimators.loss_records import loss_records
from rllm_estimators.options import (
    DrGrpoParams,
    GaeParams,
    GdpoParams,
    GpgParams,
    GrpoPassKParams,
    MaxRlParams,
    OtbParams,
    ReinforcePlusPlusParams,
    StepReinforceParams,
)

requires_api = 1


def _from(module: str, name: str) -> Callable[[], Any]:
    """A `load` that imports ``rllm_estimators.<module>`` when it is called."""
    return lambda: getattr(import_module(f"rllm_estimators.{module}"), name)


@hookimpl
def rllm_estimators() -> Iterable[EstimatorPlugin[Any]]:
    yield EstimatorPlugin(
        name="dr_grpo",
        summary="Reward minus group mean, no division (Dr.GRPO).",
        params=DrGrpoParams,
        load=_from("centred", "dr_grpo"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="gae",
        summary="Per token, from a critic's values (generalised advantage estimation).",
        params=GaeParams,
        load=_from("per_token", "gae"),
        level="token",
        scope="role",
        needs=frozenset({"values", "step_rewards"}),
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="gdpo",
        summary="Each component of the reward standardised within the group, then summed and whitened.",
        params=GdpoParams,
        load=_from("components", "gdpo"),
        scope="role",
        needs=frozenset({"reward_components"}),
        rescales_components=True,
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="gpg",
        summary="Reward minus group mean, scaled up by the share of rewards that are 0.",
        params=GpgParams,
        load=_from("centred", "gpg"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        scope="role",
        default_loss="reinforce",
    )
    yield EstimatorPlugin(
        name="grpo_passk",
        summary="Only the group's best: by how much it beats the second, / group std (for pass@k).",
        params=GrpoPassKParams,
        load=_from("centred", "grpo_passk"),
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="maxrl",
        summary="(reward - group mean) / group mean (towards maximum likelihood).",
        params=MaxRlParams,
        load=_from("centred", "maxrl"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        default_loss="importance_sampling",
    )
    yield EstimatorPlugin(
        name="opo",
        summary="Reward minus the group's mean weighted by length.",
        params=NoParams,
        load=_from("centred", "opo"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        default_loss="importance_sampling",
    )
    yield EstimatorPlugin(
        name="otb",
        summary="Per token, reward minus the group's mean there, weighted by how uncertain the policy was.",
        params=OtbParams,
        load=_from("optimal_baseline", "otb"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        level="token",
        needs=frozenset({"old_logprobs", "sum_pi_squared"}),
        default_loss="importance_sampling",
    )
    yield EstimatorPlugin(
        name="prpo",
        summary="(reward - mean) / std over all trajectories of the role.",
        params=NoParams,
        load=_from("centred", "prpo"),
        scope="role",
        default_loss="importance_sampling",
    )
    yield EstimatorPlugin(
        name="reinforce_plus_plus",
        summary="Per token, the discounted rewards to come, whitened over the role.",
        params=ReinforcePlusPlusParams,
        load=_from("per_token", "reinforce_plus_plus"),
        level="token",
        scope="role",
        needs=frozenset({"step_rewards"}),
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="remax",
        summary="Reward minus that of the greedy attempt at the same task.",
        params=NoParams,
        load=_from("centred", "remax"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        scope="trajectory",
        needs=frozenset({"greedy_rewards"}),
        default_loss="importance_sampling",
    )
    yield EstimatorPlugin(
        name="step_reinforce",
        summary="Per step, the discounted rewards to come, standardised over the group's steps.",
        params=StepReinforceParams,
        load=_from("per_step", "step_reinforce"),
        level="step",
        needs=frozenset({"step_rewards"}),
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="tir_otb",
        summary="As otb, with positions counted over sampled tokens only (tool-integrated reasoning).",
        params=OtbParams,
        load=_from("optimal_baseline", "tir_otb"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        level="token",
        needs=frozenset({"old_logprobs", "sum_pi_squared"}),
        default_loss="importance_sampling",
    )


@hookimpl
def rllm_losses() -> Iterable[LossPlugin[Any]]:
    return loss_records()
