"""Conversation: one trajectory being made, turn by turn, with exact tokens."""

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
    """Messages in, replies out; every token is kept exactly as the model saw or sampled it."""

    def __init__(
        self, context: WorkflowContext, trajectory: Trajectory, session: str, tools: Sequence[Tool] = ()
    ) -> None:
        self._context = context
        self._session = session
        self.tools = tools
        """What the model may call; all prompts show them. Set before the first reply."""
        self._heard: list[list[Message]] = [[]]
        """What was said before each reply, and since the last one."""
        self.trajectory = trajectory

    def add_observation(self, observation: str | Sequence[Message]) -> None:
        """Add what the model sees next; a plain string is a user message."""
        if isinstance(observation, str):
            self._heard[-1].append({"role": "user", "content": observation})
        else:
            self._heard[-1].extend(observation)

    async def generate(self) -> Step:
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
        sampling = context.sampling
        if sampling.max_tokens != (most := min(context.max_response_length, room)):
            sampling = replace(sampling, max_tokens=most)
        completion = await engine.generate(prompt_ids, sampling, session=self._session)
        heard = self._heard[-1]
        self._heard.append([])
        return self.trajectory.add_step(
            prompt_ids,
            completion.token_ids,
            completion.logprobs,
            text=engine.renderer.text(completion.token_ids),
            weight_version=completion.weight_version,
            version_spans=completion.version_spans,
            info={"finish_reason": completion.finish_reason},
            messages=heard,
        )

    def parsed(self, step: Step) -> Response:
        """A reply of this conversation, taken apart: content, reasoning, tool calls."""
        response = self._context.engine.renderer.parse(step.prompt_ids, step.response_ids, self.tools)
        reason = step.info["finish_reason"]
        return response if response.finish_reason == reason else response.ended_by(reason)

    def _next_prompt(self) -> NDArray[np.int32]:
        renderer = self._context.engine.renderer
        if not self.trajectory.steps:
            return renderer.prompt(self._heard[-1], self.tools)
        last = self.trajectory.steps[-1]
        prompt, response = last.prompt_ids, last.response_ids
        if not self._context.accumulate_reasoning and renderer.reasoning_ids is not None and _of_user(self._heard[-1]):
            prompt, response = without_earlier_reasoning(self._steps_since_user(), renderer.reasoning_ids)
        bridged = renderer.bridge(prompt, response, self._heard[-1], self.tools)
        return renderer.prompt(self._shown_history(), self.tools) if bridged is None else bridged

    def _steps_since_user(self) -> list[Step]:
        """The replies since the user spoke, without those that are in no prompt as they were sampled any more.

        Their thoughts are all there: models are trained to see them while they call tools. Earlier ones were cut when
        the user spoke.
        """
        steps = [self.trajectory.steps[-1]]
        before = zip(reversed(self.trajectory.steps[:-1]), reversed(self._heard[:-1]), strict=False)
        for step, heard in before:
            if _of_user(heard) or not _extends(steps[0].prompt_ids, step):
                break
            steps.insert(0, step)
        return steps

    def _shown_history(self) -> list[Message]:
        """All messages so far as the model is to see them: with thoughts until the user speaks again."""
        shown = list(self._heard[0])
        for index, (step, heard) in enumerate(zip(self.trajectory.steps, self._heard[1:], strict=True)):
            response = self.parsed(step)
            over = any(map(_of_user, self._heard[index + 1 :])) and not self._context.accumulate_reasoning
            shown += [(replace(response, reasoning=None) if over else response).message, *heard]
        return shown

    def history(self) -> list[Message]:
        """All messages so far; without earlier thoughts, unless `accumulate_reasoning` keeps them."""
        history = list(self._heard[0])
        for step, heard in zip(self.trajectory.steps, self._heard[1:], strict=True):
            response = self.parsed(step)
            kept = response if self._context.accumulate_reasoning else replace(response, reasoning=None)
            history += [kept.message, *heard]
        return history

    async def close(self) -> None:
        """Free what the engine keeps for this conversation."""
        await self._context.engine.end_session(self._session)


def _of_user(messages: Sequence[Message]) -> bool:
    return any(message["role"] == "user" for message in messages)


def _extends(prompt: NDArray[np.int32], step: Step) -> bool:
    """Whether a prompt begins with the step before it, token for token."""
    start, end = len(step.prompt_ids), len(step.prompt_ids) + len(step.response_ids)
    return np.array_equal(prompt[:start], step.prompt_ids) and np.array_equal(prompt[start:end], step.response_ids)


class Turn(Protocol):
    """A model call: `Step`, and whatever else has both."""

    @property
    def prompt_ids(self) -> NDArray[np.int32]:
        """(n,) all tokens that the model saw."""
        ...

    @property
    def response_ids(self) -> NDArray[np.int32]:
        """(n,) what it sampled."""
        ...


def without_earlier_reasoning(
    steps: Sequence[Turn], reasoning_ids: tuple[int, int]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Prompt and reply of the last of `steps`, each of which extends the one before, without the thoughts of any."""
    prompt = steps[0].prompt_ids
    for step, following in pairwise(steps):
        between = following.prompt_ids[len(step.prompt_ids) + len(step.response_ids) :]
        prompt = np.concatenate((*without_reasoning(prompt, step.response_ids, reasoning_ids), between))
    return without_reasoning(prompt, steps[-1].response_ids, reasoning_ids)


def without_reasoning(
    prompt: NDArray[np.int32], response: NDArray[np.int32], reasoning_ids: tuple[int, int]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Prompt and reply as they are when later turns look back: what was thought is cut out, token by token.

    A reply whose thoughts have no end (it was cut off, or nothing was thought) is left whole, and so is its prompt.
    """
    start, end = reasoning_ids
    ends = np.flatnonzero(response == end)
    if not ends.size:
        return prompt, response
    tail = max(len(prompt) - TOKENS_AFTER_THINK, 0)
    opened = np.flatnonzero(prompt[tail:] == start)
    if opened.size:
        prompt = prompt[: tail + opened[-1]]  # the template's; one before it would be a user's text
    return prompt, response[ends[-1] + 1 :]
