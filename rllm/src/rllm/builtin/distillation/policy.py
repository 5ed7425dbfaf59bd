"""The teacher `policy`: the trained model with more text in its prompt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rllm_core.contracts.params import Params
from rllm_core.contracts.teacher import TeacherSetup
from rllm_core.data.batch import TokenBatch
from rllm_core.data.messages import Message, read_text
from rllm_core.data.types import Trajectory
from rllm_core.errors import RolloutError


class PolicyParams(Params):
    """Options of the teacher ``policy``."""

    prompt: str = Field(min_length=1)
    """Text that only the teacher reads: a system message, or the start of the prompt's system message."""


class PolicyTeacher:
    """Scores the sampled tokens with the current weights, after a prompt with an additional system message."""

    def __init__(self, params: PolicyParams, setup: TeacherSetup) -> None:
        self._prompt = params.prompt
        self._setup = setup

    async def logprobs(self, batch: TokenBatch) -> NDArray[np.float32]:
        """Return log-probs, (n_token,), of the sampled tokens. Other tokens get 0.

        Raises:
            RolloutError: the prompt of a row is not known as messages.
        """
        instructed = self._with_prompt(batch)
        scored = await self._setup.backend.process(instructed, frozenset({"old_logprobs"}))
        assert scored.old_logprobs is not None
        logprobs = np.zeros(len(batch.tokens), np.float32)
        # Both batches have the same sampled tokens in the same order.
        logprobs[batch.loss_mask] = scored.old_logprobs[instructed.loss_mask]
        return logprobs

    def _with_prompt(self, batch: TokenBatch) -> TokenBatch:
        """Return the batch with longer prompts. The backend computes all log-probs, because none was sampled so."""
        trajectories = [each for group in batch.groups for each in group.trajectories]
        ids, masks = [], []
        for row, (start, end) in enumerate(zip(batch.row_offsets, batch.row_offsets[1:], strict=False)):
            first = start + int(batch.loss_mask[start:end].argmax())
            prompt = self._longer(trajectories[batch.trajectory[row]], batch.tokens[start:first])
            ids.append(np.concatenate((prompt, batch.tokens[first:end])))
            masks.append(np.concatenate((np.zeros(len(prompt), np.bool_), batch.loss_mask[first:end])))
        mask = np.concatenate(masks)
        return replace(
            batch,
            tokens=np.concatenate(ids).astype(np.int32),
            row_offsets=np.cumsum([0, *map(len, ids)], dtype=np.int64),
            loss_mask=mask,
            sampling_logprobs=np.where(mask, np.float32(np.nan), np.float32(0)),
            token_versions=None,
            old_logprobs=None,
            ref_logprobs=None,
            values=None,
            sum_pi_squared=None,
            advantages=None,
            returns=None,
        )

    def _longer(self, trajectory: Trajectory, prompt: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the tokens, (n,), of a row's prompt with the teacher's text."""
        renderer, messages = self._setup.renderer, list(trajectory.steps[0].messages)
        if not messages or not np.array_equal(renderer.prompt(messages), prompt):
            raise RolloutError(
                "teacher-without-messages",
                f"The teacher `policy` cannot add its text to a prompt of trajectory {trajectory.uid!r}, because its "
                "tokens are not only the messages of the first model call.",
                "Use a workflow without tools that never rewrites the conversation, or a different teacher.",
            )
        return renderer.prompt(_with_system_text(messages, self._prompt))


def _with_system_text(messages: list[Message], text: str) -> list[Message]:
    """Return the messages with `text` as a system message, or at the start of the system message that they have."""
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    return [{**messages[0], "content": f"{text}\n\n{read_text(messages[0])}"}, *messages[1:]]
