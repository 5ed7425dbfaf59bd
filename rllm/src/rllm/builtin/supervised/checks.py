"""Checks of learning from examples, without rollouts, rewards and ratios."""

from __future__ import annotations

from collections.abc import Iterator

from rllm.planning.plan import RunPlan
from rllm.planning.problem import Problem, refused
from rllm_core.contracts.plugin import Params

LOSS = "rllm.algorithm.loss_fn"


def check_imitation(plan: RunPlan, params: Params) -> Iterator[Problem]:
    """Check a run with stage `supervise`."""
    if plan.rows is None:
        return
    for loss in (entry.plugin for entry in plan.losses):
        if loss.has_ratio or loss.needs:
            yield refused(
                "loss-needs-rollouts",
                LOSS,
                f"Loss {loss.name!r} compares with the policy that sampled the tokens, and examples have none.",
                f"Set {LOSS}=cross_entropy, or remove the key.",
            )
    yield from check_no_rollouts(plan)


def check_no_rollouts(plan: RunPlan) -> Iterator[Problem]:
    """Check that no key is set that needs a policy that sampled the tokens."""
    algorithm = plan.config.rllm.algorithm
    set_to = {
        "rllm.algorithm.kl_beta": algorithm.kl_beta != 0,
        "rllm.algorithm.entropy.coeff": algorithm.entropy.coeff != 0,
        "rllm.algorithm.entropy.final_coeff": algorithm.entropy.decay_steps != 0,
        "rllm.algorithm.rollout_correction": algorithm.rollout_correction.is_active,
        "rllm.async_training": plan.config.rllm.async_training.staleness != 0,
        "sampling.train.temperature": plan.config.sampling.train.temperature != 1,
        "rllm.trainer.val_only": plan.config.rllm.trainer.val_only,
    }
    for key in (key for key, has_effect in set_to.items() if has_effect):
        yield refused(
            "not-for-examples",
            key,
            f"{key} is set, and learning from examples does not support it: it has no rollouts.",
            f"Remove {key}, or train with rewards: `rllm train`.",
        )
