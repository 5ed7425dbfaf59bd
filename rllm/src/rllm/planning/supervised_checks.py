"""Checks of fine-tuning on examples, which has no rollouts, rewards and ratios (`rllm sft`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from rllm.planning.plan import RunPlan
from rllm.planning.problem import Problem, refused
from rllm.supervised.rows import read_row
from rllm_core.data.types import Task

LOSS = "rllm.algorithm.loss_fn"
CHECKED = 20_000
"""Number of rows that are checked before a run starts. Rows after these are checked when their step begins."""


def examples_are_imitated(plan: RunPlan) -> Iterator[Problem]:
    """Check that the loss and its terms need no policy that sampled the tokens, and that no temperature is set."""
    if plan.examples is None:
        return
    for loss in (entry.plugin for entry in plan.losses):
        if loss.has_ratio or loss.needs:
            yield refused(
                "loss-needs-rollouts",
                LOSS,
                f"Loss {loss.name!r} compares with the policy that sampled the tokens, and examples have none.",
                f"Set {LOSS}=cross_entropy, or remove the key.",
            )
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
            f"{key} is set, and fine-tuning on examples does not support it: it has no rollouts.",
            f"Remove {key}, or train with rewards: `rllm train`.",
        )


def check_examples(tasks: Sequence[Task]) -> None:
    """Check that the first rows are examples. Stored rollouts are checked when they are read.

    Raises:
        ConfigError: a row has no usable columns.
    """
    for task in islice(tasks, CHECKED):
        if type(task) is Task:
            read_row(task.data, task.id)
