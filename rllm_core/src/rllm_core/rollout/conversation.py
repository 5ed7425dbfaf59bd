"""Conversation: one trajectory being made, turn by turn, with exact tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.workflow import WorkflowContext
from rllm_core.data.messages import Message
from rllm_core.data.types import Step, Trajectory
from rllm_core.seeding import derive_seed

TOKENS_AFTER_THINK = 4
"""How many tokens at the end of a prompt are looked through for the ``<think>`` of the template, itself included."""


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

    def _next_prompt(self) -> NDArray[np.int32]:
        renderer = self._context.engine.renderer
        messages, self._pending = self._pending, []
        if not self.trajectory.steps:
            return renderer.prompt(messages)
        last = self.trajectory.steps[-1]
        so_far = np.concatenate((last.prompt_ids, last.response_ids))
        continuation = renderer.continuation(int(so_far[-1]), messages)
        if not self._context.accumulate_reasoning and renderer.reasoning_ids is not None:
            # Thoughts of earlier turns are gone from this prompt already: they were cut when the next one was made.
            so_far = without_reasoning(last.prompt_ids, last.response_ids, renderer.reasoning_ids)
        return np.concatenate((so_far, continuation))

    async def close(self) -> None:
        """Free what the engine keeps for this conversation."""
        await self._context.engine.end_session(self._session)


def without_reasoning(
    prompt: NDArray[np.int32], reply: NDArray[np.int32], reasoning_ids: tuple[int, int]
) -> NDArray[np.int32]:
    """Prompt and reply as they are when later turns look back: what was thought is cut out, token by token.

    A reply whose thoughts have no end (it was cut off, or nothing was thought) is left whole, and so is its prompt.
    """
    start, end = reasoning_ids
    ends = np.flatnonzero(reply == end)
    if not ends.size:
        return np.concatenate((prompt, reply))
    tail = max(len(prompt) - TOKENS_AFTER_THINK, 0)
    opened = np.flatnonzero(prompt[tail:] == start)
    if opened.size:
        prompt = prompt[: tail + opened[-1]]  # the template's; one before it would be a user's text
    return np.concatenate((prompt, reply[ends[-1] + 1 :]))
