"""Checks of learning from examples, without rollouts, rewards and ratios (`rllm sft`, `rllm prefer`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rllm.planning.plan import RunPlan
from rllm.planning.problem import Problem, refused
from rllm.preferences.rows import check_completions, read_preference, used_columns as columns_of_preference
from rllm.rows.problem import naming
from rllm.rows.summary import RowSummary
from rllm.supervised.rows import Conversation, is_empty_response, read_row, used_columns as columns_of_example
from rllm_core.data.types import Task

LOSS = "rllm.algorithm.loss_fn"
REINFORCE = "rllm-core/reinforce"
PASSES = ("training.num_epochs", "actor_rollout_ref.actor.ppo_epochs")
"""Keys of the backends for the number of passes over a step's rows."""


def examples_are_imitated(plan: RunPlan) -> Iterator[Problem]:
    """Check that the loss and its terms need no policy that sampled the tokens, and that no temperature is set."""
    if plan.examples is None:
        return
    for loss in (entry.plugin for entry in plan.losses) if plan.preferences is None else ():
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
            f"{key} is set, and learning from examples does not support it: it has no rollouts.",
            f"Remove {key}, or train with rewards: `rllm train`.",
        )


def preferences_are_one_step(plan: RunPlan) -> Iterator[Problem]:
    """Check that an update follows the exact gradient of the preferences, which stage `prefer` computes before it."""
    if plan.preferences is None:
        return
    needed: dict[str, tuple[Any, Any]] = {
        LOSS: (plan.losses.default.qualified_name, REINFORCE),
        "rllm.algorithm.loss_agg_mode": (plan.config.rllm.algorithm.loss_agg_mode, "token-sum"),
        "rllm.algorithm.loss_map": (len(plan.losses.by_role), 0),
        **{key: (_value(plan, key), 1) for key in (plan.backend.plugin.minibatches_key, *PASSES) if key},
    }
    for key, (value, wanted) in needed.items():
        if value not in (wanted, None):
            yield refused(
                "not-for-preferences",
                key,
                f"{key} is {value}, and preferences need {wanted}: each step follows one gradient of all its rows.",
                f"Remove {key}. Set data.train_batch_size to the number of rows of an optimizer step.",
            )
    if plan.preferences.loss == "kto" and plan.tasks_per_step == 1:
        yield refused(
            "too-few-tasks",
            "data.train_batch_size",
            "Loss kto compares the completions of different prompts, and data.train_batch_size is 1.",
            "Set data.train_batch_size to 2 or more.",
        )
    if "ref_logprobs" not in plan.backend.plugin.capabilities.columns:
        yield refused(
            "missing-estimator-input",
            "rllm.backend",
            f"Stage 'prefer' needs ref_logprobs, and backend {plan.backend.name!r} cannot fill that.",
            "Choose a different backend, such as --backend local.",
        )


def _value(plan: RunPlan, key: str) -> Any:
    """Return the value of a backend's key. None if this backend has no such key."""
    try:
        return plan.composed.value(key)
    except KeyError:
        return None


def check_examples(plan: RunPlan, tasks: Iterable[Task], source: str) -> RowSummary:
    """Check that all rows are examples, and return their summary. Stored rollouts are checked when they are read.

    Args:
        plan: the run's plan.
        tasks: the rows.
        source: the file or the dataset, for errors.

    Raises:
        ConfigError: a part of a row cannot be used.
    """
    preferences = plan.preferences
    summary = RowSummary(source)
    columns_of_row = columns_of_example if preferences is None else columns_of_preference
    for task in tasks:
        if type(task) is not Task:
            summary.rows += 1
            continue
        summary.add(task.data)
        with naming(f"{source}, row {task.id!r}"):
            if preferences is None:
                examples = [read_row(task.data)]
            else:
                completions = read_preference(task.data)
                check_completions(completions, preferences.loss)
                examples = [*completions.values()]
        summary.used.update(columns_of_row(task.data))
        for example in examples:
            if isinstance(example, Conversation):
                summary.add_messages(example.messages)
                summary.untrained += len(example.untrained)
                summary.after_last += example.unused
                summary.empty += sum(map(is_empty_response, example.trained))
    summary.keep_columns(tasks)
    return summary
