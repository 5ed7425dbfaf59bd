"""The prompt of a request: what an earlier call has seen stays as it is, only what follows is rendered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.renderer import Renderer
from rllm_core.data.messages import Message
from rllm_core.errors import RolloutError, failures_as
from rllm_core.rollout.conversation import without_earlier_reasoning
from rllm_gateway.asked import Asked
from rllm_gateway.digests import REASONING
from rllm_gateway.refusals import invalid
from rllm_gateway.tree import Node, Place


@dataclass(frozen=True, eq=False)
class Prompt:
    """The tokens of a prompt, and what they share with the parent's prompt and reply."""

    ids: NDArray[np.int32]
    """(n,) all of them."""
    kept: int
    """How many of them the parent's prompt and reply begin with; 0 without a parent."""


@dataclass(frozen=True, eq=False)
class _Turn:
    """One of the calls that a prompt continues."""

    prompt_ids: NDArray[np.int32]
    response_ids: NDArray[np.int32]


def prompt_of(place: Place, asked: Asked, renderer: Renderer, accumulate_reasoning: bool) -> Prompt:
    """Render a request.

    Raises:
        RefusedError: the renderer of the model cannot show such messages.
    """
    try:
        with failures_as(RolloutError, "The renderer of the model"):
            return _rendered(place, asked, renderer, accumulate_reasoning)
    except RolloutError as error:
        raise invalid(str(error), "messages") from error


def _rendered(place: Place, asked: Asked, renderer: Renderer, accumulate_reasoning: bool) -> Prompt:
    if asked.raw_prompt is not None:
        return Prompt(_raw(asked.raw_prompt, renderer), 0)
    parent = place.parent
    if parent is None:
        return Prompt(renderer.prompt(_shown(place, asked.messages, accumulate_reasoning), asked.tools), 0)
    prompt, reply = before, sampled = parent.prompt_ids, parent.response_ids
    if not accumulate_reasoning and renderer.reasoning_ids is not None and of_user(place.rest):
        prompt, reply = without_earlier_reasoning(_turns_since_user(parent), renderer.reasoning_ids)
    ids = renderer.bridge(prompt, reply, place.rest, asked.tools)
    if ids is None:
        ids = renderer.prompt(_shown(place, asked.messages, accumulate_reasoning), asked.tools)
    elif prompt is before and reply is sampled:
        return Prompt(ids, parent.size)
    return Prompt(ids, shared(np.concatenate((before, sampled)), ids))


def _raw(prompt: str | tuple[int, ...], renderer: Renderer) -> NDArray[np.int32]:
    if not isinstance(prompt, str):
        return np.array(prompt, np.int32)
    # Renderers encode text as a reply, whose end follows it.
    ids = renderer.reply_ids(prompt)
    return ids[:-1] if len(ids) and int(ids[-1]) in renderer.stop_ids else ids


def of_user(messages: Sequence[Message]) -> bool:
    return any(message["role"] == "user" for message in messages)


def shared(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """How many tokens two prompts begin with alike."""
    most = min(len(one), len(other))
    differs = np.flatnonzero(one[:most] != other[:most])
    return int(differs[0]) if differs.size else most


def _turns_since_user(node: Node) -> list[_Turn]:
    """The calls since the user spoke: their thoughts are all in the prompt still."""
    turns = [_Turn(node.prompt_ids, node.response_ids)]
    while node.parent is not None and not node.heard_user and node.extends_parent:
        node = node.parent
        turns.insert(0, _Turn(node.prompt_ids, node.response_ids))
    return turns


def _shown(place: Place, messages: Sequence[Message], accumulate_reasoning: bool) -> list[Message]:
    """Messages for a whole prompt: replies as they were sampled, with thoughts until the user speaks."""
    shown, over = list[Message](), False
    for at in reversed(range(len(messages))):
        node = place.matched.get(at)
        message = messages[at] if node is None else node.message
        if over and not accumulate_reasoning and REASONING in message:
            message = {key: value for key, value in message.items() if key != REASONING}
        over = over or message["role"] == "user"
        shown.insert(0, message)
    return shown
