"""The recorded data of an update, and its objective as JSON data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.train_step import TrainStep
from rllm_record.steps.accounting import Origin
from rllm_record.steps.rows import RecordedUpdate


def recorded_update(
    step: TrainStep, trained: Sequence[Origin], backend: str, max_response_length: int
) -> RecordedUpdate | None:
    """Return the update of a step. None if the step made no update.

    Args:
        step: a step after all its stages.
        trained: (n_traj of its batch,) origins of the batch's trajectories.
        backend: name of the backend.
        max_response_length: ``data.max_response_length`` of the run.
    """
    if step.batch is None or step.update_plan is None or step.update_result is None:
        return None
    return RecordedUpdate(
        batch=step.batch,
        uids=[origin.uid for origin in trained],
        played_steps=[origin.played_step if origin.episode else None for origin in trained],
        objective=objective_of(step.update_result.made_with or step.update_plan, backend, max_response_length),
        trace=step.update_result.trace,
        optimizer_steps=step.update_result.optimizer_steps,
    )


def objective_of(plan: UpdatePlan, backend: str, max_response_length: int) -> dict[str, Any]:
    """Return the objective of an update.

    Returns:
        A dict with ``backend``, ``losses``, ``aggregation``, ``max_response_length``, ``entropy_coeff``, ``kl`` and
        ``rollout_correction``. ``losses`` contains, for each role, the loss's qualified ``name`` and its ``params``.
        ``kl`` and ``rollout_correction`` are the fields of `UpdatePlan` as dicts, or None.
    """
    return {
        "backend": backend,
        "losses": {
            role: {"name": chosen.registered.qualified_name, "params": chosen.params.model_dump(mode="json")}
            for role, chosen in plan.losses.items()
        },
        "aggregation": plan.aggregation,
        "max_response_length": max_response_length,
        "entropy_coeff": plan.entropy_coeff,
        "kl": None if plan.kl is None else asdict(plan.kl),
        "rollout_correction": None if plan.rollout_correction is None else asdict(plan.rollout_correction),
    }
