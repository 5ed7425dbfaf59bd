"""Stop a run if the model generates no response in the first step."""

from __future__ import annotations

from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import TerminationReason
from rllm_core.errors import RolloutError


def require_responses(step: TrainStep) -> None:
    """Raise an error if no rollout of the first step has a response. Such a run would finish without training.

    Later steps are not checked, because their tasks depend on the random order.

    Raises:
        RolloutError: no rollout of the step has a response, and each ended because its prompt was too long.
    """
    too_long = TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED
    if step.generated and all(
        episode.termination_reason is too_long and not any(trajectory.steps for trajectory in episode.trajectories)
        for episode in step.generated
    ):
        raise RolloutError(
            "prompt-too-long",
            f"All {len(step.generated)} rollouts of the first step ended without a response: their first prompts are "
            "too long.",
            "Raise data.max_prompt_length or the backend's own limit, such as training.max_length. Otherwise remove "
            "these tasks.",
        )
