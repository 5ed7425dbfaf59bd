"""The first step is looked at: a run in which the model never says a word ends."""

from __future__ import annotations

from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import TerminationReason
from rllm_core.errors import RolloutError


def require_responses(step: TrainStep) -> None:
    """A run in which the model never says a word would end well, and have trained on nothing.

    Only the first step is looked at: which tasks later ones draw is chance.

    Raises:
        RolloutError: no attempt of the step has a reply, and each ended since its prompt was too long.
    """
    too_long = TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED
    if step.generated and all(
        episode.termination_reason is too_long and not any(trajectory.steps for trajectory in episode.trajectories)
        for episode in step.generated
    ):
        raise RolloutError(
            "prompt-too-long",
            f"All {len(step.generated)} attempts of the first step ended before the model said anything: their first "
            "prompts are too long.",
            "Raise data.max_prompt_length, or the backend's own limit, such as training.max_length; or leave such "
            "tasks out.",
        )
