"""The end of a response in a rendered conversation: the stop token that the chat template writes after it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.renderer import Renderer
from rllm_core.data.messages import Message, Tool, read_text
from rllm_core.errors import RolloutError

Ids = NDArray[np.int32]
MORE = "x"
"""Text that is added to a response. Tokens that it does not change come after the response's own text."""
ANY: Sequence[Message] = ({"role": "user", "content": "."}, {"role": "assistant", "content": "."})
"""A conversation whose end is rendered once, because most templates end all responses with the same tokens."""


def response_of(renderer: Renderer, messages: Sequence[Message], tools: Sequence[Tool], start: int) -> Ids | None:
    """Return the tokens, (n,) int32, of the last message up to its stop token. None if the template writes none.

    Templates write more after a response: a line break, or the header of the next turn. That header is a stop token of
    some models, and a response can have a stop token in its text.

    Args:
        renderer: the renderer of the model.
        messages: a conversation that ends with an assistant message.
        tools: the tools of the conversation.
        start: number of tokens before the response.
    """
    response = renderer.prompt(messages, tools)[start:]
    for shown in [messages] if messages[-1].get("tool_calls") else [ANY, messages]:
        after = _after_text(renderer, shown, tools)
        if after is not None and np.array_equal(response[max(len(response) - len(after), 0) :], after):
            ending = _up_to_stop(renderer, after)
            if ending is None:
                # Some models end a response with the header of the next turn, for example `<|user|>`.
                ending = _up_to_stop(renderer, _after_text(renderer, shown, tools, [_next_message(shown[-1])]))
            return None if ending is None else np.concatenate((response[: len(response) - len(after)], ending))
    return _up_to_stop(renderer, response)


def _after_text(
    renderer: Renderer, messages: Sequence[Message], tools: Sequence[Tool], following: Sequence[Message] = ()
) -> Ids | None:
    """Return the tokens after the text of the last of `messages`.

    Return None if the template does not show this text, or does not support the `following` messages.
    """
    longer = {**messages[-1], "content": read_text(messages[-1]) + MORE}
    try:
        whole, other = (
            renderer.prompt([*messages[:-1], each, *following], tools)[::-1] for each in (messages[-1], longer)
        )
    except RolloutError:
        return None
    most = min(len(whole), len(other))
    differs = np.flatnonzero(whole[:most] != other[:most])
    return whole[: int(differs[0])][::-1] if differs.size else None


def _up_to_stop(renderer: Renderer, tokens: Ids | None) -> Ids | None:
    if tokens is None:
        return None
    stops = np.flatnonzero(np.isin(tokens, [*renderer.stop_ids]))
    return tokens[: int(stops[0]) + 1] if stops.size else None


def _next_message(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return {"role": "user", "content": "."}
    return {"role": "tool", "content": ".", "tool_call_id": calls[0].get("id", "")}
