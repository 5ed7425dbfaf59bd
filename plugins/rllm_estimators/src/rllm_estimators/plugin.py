"""Plugins of rllm-estimators: advantage estimators and policy losses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts.estimator import EstimatorPlugin
from rllm_core.contracts.loss import LossPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1
OF_SEQUENCES = "loss_agg_mode=seq-mean-token-mean is the paper's"


@hookimpl
def rllm_estimators() -> Iterable[EstimatorPlugin[Any]]:
    yield EstimatorPlugin(
        name="a2po",
        summary="Reward minus a soft maximum of the group's rewards (A*-PO).",
        load_params=load_from("rllm_estimators.options", "A2poParams"),
        load=load_from("rllm_estimators.centred", "a2po"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        default_loss="a2po",
    )
    yield EstimatorPlugin(
        name="dr_grpo",
        summary="Reward minus group mean, no division (Dr.GRPO).",
        load_params=load_from("rllm_estimators.options", "DrGrpoParams"),
        load=load_from("rllm_estimators.centred", "dr_grpo"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="gae",
        summary="Per token, from a critic's values (generalized advantage estimation).",
        load_params=load_from("rllm_estimators.options", "GaeParams"),
        load=load_from("rllm_estimators.per_token", "gae"),
        level="token",
        scope="role",
        needs=frozenset({"values", "step_rewards"}),
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="gdpo",
        summary="Each component of the reward standardized within the group, then summed and whitened.",
        load_params=load_from("rllm_estimators.options", "GdpoParams"),
        load=load_from("rllm_estimators.components", "gdpo"),
        scope="role",
        needs=frozenset({"reward_components"}),
        rescales_components=True,
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="gigpo",
        summary="GRPO of trajectories, plus GRPO of the steps that start in an equal state.",
        load_params=load_from("rllm_estimators.options", "GigpoParams"),
        load=load_from("rllm_estimators.grpo_variants", "gigpo"),
        level="step",
        needs=frozenset({"step_rewards"}),
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="gpg",
        summary="Reward minus group mean, scaled up by the share of rewards that are 0.",
        load_params=load_from("rllm_estimators.options", "GpgParams"),
        load=load_from("rllm_estimators.centred", "gpg"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        scope="role",
        default_loss="reinforce",
    )
    yield EstimatorPlugin(
        name="grpo_length",
        summary="GRPO, with a bonus for short and a malus for long responses of the group.",
        load_params=load_from("rllm_estimators.options", "GrpoLengthParams"),
        load=load_from("rllm_estimators.grpo_variants", "grpo_length"),
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="grpo_passk",
        summary="Only the group's best: by how much it beats the second, / group std (for pass@k).",
        load_params=load_from("rllm_estimators.options", "GrpoPassKParams"),
        load=load_from("rllm_estimators.centred", "grpo_passk"),
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="hierarchical_grpo",
        summary="GRPO within each episode for a role with several trajectories there, otherwise within the group.",
        load=load_from("rllm_estimators.grpo_variants", "hierarchical_grpo"),
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="liteppo",
        summary="(reward - group mean) / std of all rewards of the role.",
        load=load_from("rllm_estimators.grpo_variants", "liteppo"),
        scope="role",
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="maxrl",
        summary="(reward - group mean) / group mean (towards maximum likelihood).",
        load_params=load_from("rllm_estimators.options", "MaxRlParams"),
        load=load_from("rllm_estimators.centred", "maxrl"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        default_loss="importance_sampling",
    )
    yield EstimatorPlugin(
        name="mix",
        summary="A weighted sum of other estimators.",
        load_params=load_from("rllm_estimators.options", "MixParams"),
        load=load_from("rllm_estimators.stateful", "Mixture"),
        keeps_state=True,
        level="token",
        scope="role",
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="opo",
        summary="Reward minus the group's mean weighted by length.",
        load=load_from("rllm_estimators.centred", "opo"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        default_loss="importance_sampling",
    )
    yield EstimatorPlugin(
        name="otb",
        summary="Per token, reward minus the group's mean there, weighted by how uncertain the policy was.",
        load_params=load_from("rllm_estimators.options", "OtbParams"),
        load=load_from("rllm_estimators.optimal_baseline", "otb"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        level="token",
        needs=frozenset({"old_logprobs", "sum_pi_squared"}),
        default_loss="importance_sampling",
    )
    yield EstimatorPlugin(
        name="prpo",
        summary="(reward - mean) / std over all trajectories of the role.",
        load=load_from("rllm_estimators.centred", "prpo"),
        scope="role",
        default_loss="importance_sampling",
    )
    yield EstimatorPlugin(
        name="rae",
        summary="Reward minus a running mean of the role's rewards (role-conditioned advantage).",
        load_params=load_from("rllm_estimators.options", "RaeParams"),
        load=load_from("rllm_estimators.stateful", "RoleBaseline"),
        keeps_state=True,
        fixed_options={"norm_adv_by_std_in_grpo": False},
        scope="role",
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="reinforce_plus_plus",
        summary="Per token, the discounted rewards to come, whitened over the role.",
        load_params=load_from("rllm_estimators.options", "ReinforcePlusPlusParams"),
        load=load_from("rllm_estimators.per_token", "reinforce_plus_plus"),
        level="token",
        scope="role",
        needs=frozenset({"step_rewards"}),
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="remax",
        summary="Reward minus the reward of a greedy rollout of the same task.",
        load=load_from("rllm_estimators.centred", "remax"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        scope="trajectory",
        needs=frozenset({"greedy_rewards"}),
        default_loss="importance_sampling",
    )
    yield EstimatorPlugin(
        name="spo",
        summary="Reward minus a running estimate for the task, whitened over the role (single-stream).",
        load_params=load_from("rllm_estimators.options", "SpoParams"),
        load=load_from("rllm_estimators.stateful", "TaskBaseline"),
        keeps_state=True,
        scope="role",
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="step_reinforce",
        summary="Per step, the discounted rewards to come, standardized over the group's steps.",
        load_params=load_from("rllm_estimators.options", "StepReinforceParams"),
        load=load_from("rllm_estimators.per_token", "step_reinforce"),
        level="step",
        needs=frozenset({"step_rewards"}),
        default_loss="ppo",
    )
    yield EstimatorPlugin(
        name="tir_otb",
        summary="As otb, with positions counted over sampled tokens only (tool-integrated reasoning).",
        load_params=load_from("rllm_estimators.options", "OtbParams"),
        load=load_from("rllm_estimators.optimal_baseline", "tir_otb"),
        fixed_options={"norm_adv_by_std_in_grpo": False},
        level="token",
        needs=frozenset({"old_logprobs", "sum_pi_squared"}),
        default_loss="importance_sampling",
    )


@hookimpl
def rllm_losses() -> Iterable[LossPlugin[Any]]:
    yield LossPlugin(
        name="a2po",
        summary="Squared error between a row's log-ratio to the reference model and its advantage (A*-PO).",
        load_params=load_from("rllm_estimators.options", "A2poLossParams"),
        load=load_from("rllm_estimators.losses_sequence", "a2po"),
        needs=frozenset({"ref_logprobs"}),
    )
    yield LossPlugin(
        name="cispo",
        summary="Log-prob times advantage, weighted by the clipped importance ratio, which has no gradient.",
        load_params=load_from("rllm_estimators.options", "CispoParams"),
        load=load_from("rllm_estimators.losses_weighted", "cispo"),
        load_clipped=load_from("rllm_estimators.losses_weighted", "cispo_clipped"),
    )
    yield LossPlugin(
        name="dppo_tv",
        summary="Trains on a token while its probability is within max_divergence of the old one.",
        load_params=load_from("rllm_estimators.options", "DppoParams"),
        load=load_from("rllm_estimators.losses_weighted", "dppo_tv"),
        load_clipped=load_from("rllm_estimators.losses_weighted", "dppo_tv_clipped"),
        corrects_rollouts=True,
    )
    yield LossPlugin(
        name="dppo_kl",
        summary="Trains on a token while the divergence of its probability from the old one is within max_divergence.",
        load_params=load_from("rllm_estimators.options", "DppoParams"),
        load=load_from("rllm_estimators.losses_weighted", "dppo_kl"),
        load_clipped=load_from("rllm_estimators.losses_weighted", "dppo_kl_clipped"),
        corrects_rollouts=True,
    )
    yield LossPlugin(
        name="dro",
        summary="Log-prob times advantage, with a quadratic penalty on the log-ratio.",
        load_params=load_from("rllm_estimators.options", "DroParams"),
        load=load_from("rllm_estimators.losses_weighted", "dro"),
    )
    yield LossPlugin(
        name="sapo",
        summary=f"A smooth gate instead of PPO's clip; {OF_SEQUENCES}.",
        load_params=load_from("rllm_estimators.options", "SapoParams"),
        load=load_from("rllm_estimators.losses_weighted", "sapo"),
    )
    yield LossPlugin(
        name="gspo",
        summary=f"PPO's clip on one ratio per sequence; {OF_SEQUENCES}.",
        load_params=load_from("rllm_estimators.options", "GspoParams"),
        load=load_from("rllm_estimators.losses_sequence", "gspo"),
        load_clipped=load_from("rllm_estimators.losses_sequence", "gspo_clipped"),
    )
    yield LossPlugin(
        name="gmpo",
        summary=f"Geometric mean of a sequence's clipped ratios; {OF_SEQUENCES}.",
        load_params=load_from("rllm_estimators.options", "GmpoParams"),
        load=load_from("rllm_estimators.losses_sequence", "gmpo"),
        load_clipped=load_from("rllm_estimators.losses_sequence", "gmpo_clipped"),
    )
    yield LossPlugin(
        name="kl_cov",
        summary="No clip; a penalty on the few tokens of each row that cost the most entropy.",
        load_params=load_from("rllm_estimators.options", "KlCovParams"),
        load=load_from("rllm_estimators.losses_covariance", "kl_cov"),
    )
    yield LossPlugin(
        name="clip_cov",
        summary="PPO, without a random few of each row's tokens that cost the most entropy.",
        load_params=load_from("rllm_estimators.options", "ClipCovParams"),
        load=load_from("rllm_estimators.losses_covariance", "clip_cov"),
        load_clipped=load_from("rllm_estimators.losses_covariance", "clip_cov_clipped"),
    )
    yield LossPlugin(
        name="fipo",
        summary="PPO, with advantages raised if the row's later tokens became likelier.",
        load_params=load_from("rllm_estimators.options", "FipoParams"),
        load=load_from("rllm_estimators.losses_weighted", "fipo"),
        load_clipped=load_from("rllm_estimators.losses_weighted", "fipo_clipped"),
    )
    yield LossPlugin(
        name="ipo",
        summary="Importance ratio times advantage for tokens whose probability changed little, and a pull back.",
        load_params=load_from("rllm_estimators.options", "IpoParams"),
        load=load_from("rllm_estimators.losses_weighted", "ipo"),
        load_clipped=load_from("rllm_estimators.losses_weighted", "ipo_clipped"),
        corrects_rollouts=True,
    )
    yield LossPlugin(
        name="reinforce_kl",
        summary="Log-prob times advantage, weighted by the ratio to the sampler, and KL terms to the sampler.",
        load_params=load_from("rllm_estimators.options", "ReinforceKlParams"),
        load=load_from("rllm_estimators.losses_weighted", "reinforce_kl"),
        load_clipped=load_from("rllm_estimators.losses_weighted", "reinforce_kl_clipped"),
        corrects_rollouts=True,
    )
    yield LossPlugin(
        name="topr",
        summary="Log-prob times advantage; negative advantages are weighted by the ratio, at most 1.",
        load_params=load_from("rllm_estimators.options", "ToprParams"),
        load=load_from("rllm_estimators.losses_weighted", "topr"),
        load_clipped=load_from("rllm_estimators.losses_weighted", "topr_clipped"),
        corrects_rollouts=True,
    )
    yield LossPlugin(
        name="vespo",
        summary="Log-prob times advantage, weighted by a smooth function of the row's ratio.",
        load_params=load_from("rllm_estimators.options", "VespoParams"),
        load=load_from("rllm_estimators.losses_weighted", "vespo"),
        corrects_rollouts=True,
    )
