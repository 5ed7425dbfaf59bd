"""Conversation: builds one trajectory, turn by turn, with exact tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.workflow import WorkflowContext
from rllm_core.data.messages import Message, Response, Tool
from rllm_core.data.types import Step, Trajectory
from rllm_core.rollout.template_renderer import TOKENS_AFTER_THINK


class PromptTooLongError(Exception):
    """The next prompt would exceed `data.max_prompt_length` or leave no room in the model's context."""


class Conversation:
    """A conversation with the model. It stores every token exactly as the model received or sampled it."""

    def __init__(
        self, context: WorkflowContext, trajectory: Trajectory, session: str, tools: Sequence[Tool] = ()
    ) -> None:
        self._context = context
        self._session = session
        self.tools = tools
        """The tools that the model may call. All prompts show them. Set them before the first response."""
        self._observations: list[list[Message]] = [[]]
        """The new messages before each response, and the messages since the last response."""
        self.trajectory = trajectory

    def add_observation(self, observation: str | Sequence[Message]) -> None:
        """Add the next messages for the model. A plain string is a user message."""
        if isinstance(observation, str):
            self._observations[-1].append({"role": "user", "content": observation})
        else:
            self._observations[-1].extend(observation)

    async def generate(self) -> Step:
        """Sample the model's response. The new step is the last step of the trajectory, and `step.text` is the response
        text.

        Raises:
            PromptTooLongError: the context has no room for a response. Nothing was sampled.
        """
        context = self._context
        engine = context.engine
        prompt_ids = self._next_prompt()
        room = engine.max_context - len(prompt_ids)
        if len(prompt_ids) > context.max_prompt_length or room < 1:
            raise PromptTooLongError
        sampling = context.sampling
        if sampling.max_tokens != (most := min(context.max_response_length, room)):
            sampling = replace(sampling, max_tokens=most)
        completion = await engine.generate(prompt_ids, sampling, session=self._session)
        messages = self._observations[-1]
        self._observations.append([])
        return self.trajectory.add_step(
            prompt_ids,
            completion.token_ids,
            completion.logprobs,
            text=engine.renderer.text(completion.token_ids),
            weight_version=completion.weight_version,
            version_spans=completion.version_spans,
            info={"finish_reason": completion.finish_reason},
            messages=messages,
        )

    def parse_step(self, step: Step) -> Response:
        """Return a parsed response of this conversation: content, reasoning, tool calls."""
        response = self._context.engine.renderer.parse(step.prompt_ids, step.response_ids, self.tools)
        reason = step.info["finish_reason"]
        return response if response.finish_reason == reason else response.ended_by(reason)

    def _next_prompt(self) -> NDArray[np.int32]:
        renderer = self._context.engine.renderer
        if not self.trajectory.steps:
            return renderer.prompt(self._observations[-1], self.tools)
        last = self.trajectory.steps[-1]
        prompt, response = last.prompt_ids, last.response_ids
        if (
            not self._context.accumulate_reasoning
            and renderer.reasoning_ids is not None
            and _of_user(self._observations[-1])
        ):
            prompt, response = without_earlier_reasoning(self._steps_since_user(), renderer.reasoning_ids)
        bridged = renderer.bridge(prompt, response, self._observations[-1], self.tools)
        return renderer.prompt(self._shown_history(), self.tools) if bridged is None else bridged

    def _steps_since_user(self) -> list[Step]:
        """Return the steps since the last user message whose tokens are unchanged in the latest prompt.

        All their reasoning is in that prompt, because models are trained to see it between tool calls. Earlier
        reasoning was removed at the last user message.
        """
        steps = [self.trajectory.steps[-1]]
        before = zip(reversed(self.trajectory.steps[:-1]), reversed(self._observations[:-1]), strict=False)
        for step, messages in before:
            if _of_user(messages) or not _extends(steps[0].prompt_ids, step):
                break
            steps.insert(0, step)
        return steps

    def _shown_history(self) -> list[Message]:
        """Return all messages so far in the form that the model should see. Reasoning is removed after the next user
        message."""
        shown = list(self._observations[0])
        for index, (step, messages) in enumerate(zip(self.trajectory.steps, self._observations[1:], strict=True)):
            response = self.parse_step(step)
            over = any(map(_of_user, self._observations[index + 1 :])) and not self._context.accumulate_reasoning
            shown += [(replace(response, reasoning=None) if over else response).message, *messages]
        return shown

    def history(self) -> list[Message]:
        """Return all messages so far, without reasoning unless `accumulate_reasoning` keeps it."""
        history = list(self._observations[0])
        for step, messages in zip(self.trajectory.steps, self._observations[1:], strict=True):
            response = self.parse_step(step)
            kept = response if self._context.accumulate_reasoning else replace(response, reasoning=None)
            history += [kept.message, *messages]
        return history

    async def close(self) -> None:
        """Free the engine's cache of this conversation."""
        await self._context.engine.end_session(self._session)


def _of_user(messages: Sequence[Message]) -> bool:
    return any(message["role"] == "user" for message in messages)


def _extends(prompt: NDArray[np.int32], step: Step) -> bool:
    """Return True if a prompt begins with the tokens of the step before it."""
    start, end = len(step.prompt_ids), len(step.prompt_ids) + len(step.response_ids)
    return np.array_equal(prompt[:start], step.prompt_ids) and np.array_equal(prompt[start:end], step.response_ids)


class Turn(Protocol):
    """A model call: a `Step`, or any other object with both fields."""

    @property
    def prompt_ids(self) -> NDArray[np.int32]:
        """(n,) all tokens of the prompt."""
        ...

    @property
    def response_ids(self) -> NDArray[np.int32]:
        """(n,) the sampled tokens."""
        ...


def without_earlier_reasoning(
    steps: Sequence[Turn], reasoning_ids: tuple[int, int]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return prompt and response of the last step without any reasoning. Each step must extend the previous one."""
    prompt = steps[0].prompt_ids
    for step, following in pairwise(steps):
        between = following.prompt_ids[len(step.prompt_ids) + len(step.response_ids) :]
        prompt = np.concatenate((*without_reasoning(prompt, step.response_ids, reasoning_ids), between))
    return without_reasoning(prompt, steps[-1].response_ids, reasoning_ids)


def without_reasoning(
    prompt: NDArray[np.int32], response: NDArray[np.int32], reasoning_ids: tuple[int, int]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return prompt and response without the reasoning, whose tokens are cut out. Later turns see them in this form.

    A response without an end of reasoning (it was cut off, or has no reasoning) is unchanged. Its prompt is unchanged
    too.
    """
    start, end = reasoning_ids
    ends = np.flatnonzero(response == end)
    if not ends.size:
        return prompt, response
    tail = max(len(prompt) - TOKENS_AFTER_THINK, 0)
    opened = np.flatnonzero(prompt[tail:] == start)
    if opened.size:
        prompt = prompt[: tail + opened[-1]]  # the template wrote the last one; an earlier one is user text
    return prompt, response[ends[-1] + 1 :]
