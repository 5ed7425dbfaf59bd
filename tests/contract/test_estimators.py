"""Every estimator of this repository keeps the contract of estimators, in all dialects."""

from __future__ import annotations

from rllm_core.data.types import Trajectory
from rllm_plugin_kit import EstimatorContract

MIXED = ["rllm-core/rloo", "rllm-estimators/liteppo", "rllm-estimators/spo"]
SHARED = {"norm_adv_by_std_in_grpo": False}


globals().update(
    EstimatorContract.for_each(
        "rllm-core",
        "rllm-estimators",
        grpo={"options": ({}, SHARED, {"dialect": "verl"}, {"dialect": "trl"})},
        rloo={"options": ({}, {"dialect": "trl"})},
        reinforce_plus_plus_baseline={"options": ({}, {"dialect": "verl"})},
        a2po={"options": ({}, {"beta": 5.0})},
        dr_grpo={"options": ({}, {"dialect": "trl"})},
        gdpo={"options": ({}, {"dialect": "nemo"}, {"weights": {"format": 0.5}})},
        gpg={"options": ({}, {"f_norm": 2.0})},
        grpo_passk={"options": ({}, SHARED)},
        maxrl={"options": ({}, {"dialect": "skyrl"})},
        hierarchical_grpo={},
        liteppo={},
        # Equal rewards of different lengths are not equal to it.
        grpo_length={"options": ({}, {"weight": 0.5}), "centres": False},
        gigpo={"options": ({}, SHARED)},
        # Equal rewards are not equal returns. Returns differ by the critic's values and their errors, and the longest
        # trajectory of a group has no comparison.
        gae={
            "options": ({}, {"gamma": 0.9, "whiten": False}, {"use_step_rewards": True}, {"lam_alpha": 0.5}),
            "centres": False,
        },
        reinforce_plus_plus={"options": ({}, {"use_step_rewards": True})},
        step_reinforce={"options": ({}, {"gamma": 0.9}, SHARED)},
        mix={"options": ({"parts": MIXED}, {"parts": MIXED, "weights": [0.5, -1.0, 2.0]})},
        # Equal rewards differ from a running mean that began at 0.
        rae={"options": ({}, {"decay": 0.5}), "centres": False},
        spo={"options": ({}, {"retention": 0.5, "prior": 0.2})},
        otb={"options": ({}, {"tis_mode": "token"}), "centres": False},
        tir_otb={"options": ({}, {"tis_mode": "sequence"}), "centres": False},
    )
)


class TestTree(EstimatorContract):
    """Trajectories are the leaves of two trees for each task, which fork before the first call."""

    name = "tree"

    def prepare(self, trajectory: Trajectory) -> None:
        rollout = int(trajectory.uid.partition("/")[0].rpartition(":")[2])
        trajectory.info["branch"] = {"tree": f"{rollout % 2}", "forks": [[0, 0, rollout // 2]]}


class TestReinforcePlusPlusDiscounted(EstimatorContract):
    """Equal rewards are not equal returns where lengths differ."""

    name = "reinforce_plus_plus"
    options = ({"gamma": 0.5},)
    centres = False
