"""Conversation: one trajectory being made, turn by turn, with exact tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rllm_core.contracts.environment import Message
from rllm_core.contracts.workflow import WorkflowContext
from rllm_core.seeding import derive_seed
from rllm_core.types import Step, Trajectory


class PromptTooLongError(Exception):
    """The next prompt would exceed `data.max_prompt_length` or leave no room in the model's context."""


class Conversation:
    """Messages in, replies out; every token is kept exactly as the model saw or sampled it."""

    def __init__(self, context: WorkflowContext, trajectory: Trajectory, session: str) -> None:
        self._context = context
        self._session = session
        self._pending: list[Message] = []
        self.trajectory = trajectory

    def hear(self, observation: str | Sequence[Message]) -> None:
        """Add what the model sees next; a plain string is a user message."""
        if isinstance(observation, str):
            self._pending.append({"role": "user", "content": observation})
        else:
            self._pending.extend(observation)

    async def reply(self) -> Step:
        """Let the model answer what it heard. The new step is the trajectory's last; `step.text` are the words.

        Raises:
            PromptTooLongError: there is no room for an answer. Nothing was sampled.
        """
        context = self._context
        engine = context.engine
        prompt_ids = self._next_prompt()
        room = engine.max_context - len(prompt_ids)
        if len(prompt_ids) > context.max_prompt_length or room < 1:
            raise PromptTooLongError
        turn = len(self.trajectory.steps)
        sampling = replace(
            context.sampling,
            max_tokens=min(context.max_response_length, room),
            seed=derive_seed(context.sampling.seed, "turn", turn),
        )
        completion = await engine.generate(prompt_ids, sampling, session=self._session)
        return self.trajectory.add_step(
            prompt_ids,
            completion.token_ids,
            completion.logprobs,
            text=engine.renderer.text(completion.token_ids),
            weight_version=completion.weight_version,
            info={"finish_reason": completion.finish_reason},
        )

    def _next_prompt(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        renderer = self._context.engine.renderer
        messages, self._pending = self._pending, []
        if not self.trajectory.steps:
            return renderer.prompt(messages)
        so_far = self.trajectory.tokens.ids
        return np.concatenate((so_far, renderer.continuation(int(so_far[-1]), messages)))

    async def close(self) -> None:
        """Free what the engine keeps for this conversation."""
        await self._context.engine.end_session(self._session)
