"""From what was sampled to what a client is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion
from rllm_core.contracts.renderer import Renderer
from rllm_core.data.messages import Message
from rllm_gateway.answer import Choice, Finish, SampledToken
from rllm_gateway.asked import Asked
from rllm_gateway.prompting import Prompt
from rllm_gateway.structured import call_in


def choice_of(
    call: str, place: str, asked: Asked, prompt: Prompt, completion: Completion, renderer: Renderer
) -> Choice:
    """A reply, taken apart by the renderer. Never raises for what a model may write.

    Args:
        call: id of the call.
        place: names it within its session, the same in each try of an attempt.
        asked: the request.
        prompt: its tokens.
        completion: what was sampled.
        renderer: of the model.
    """
    reply = renderer.parse(prompt.ids, completion.token_ids, asked.tools)
    message: dict[str, Any] = (
        dict(reply.message) if asked.raw_prompt is None else {"role": "assistant", "content": reply.text}
    )
    if asked.wanted is not None and "tool_calls" not in message and (calls := call_in(message["content"], asked.tools)):
        message |= {"content": "", "tool_calls": calls}
    stop = _stopped_at(reply.text, asked.stop)
    if stop is not None:
        message["content"] = _before(message["content"], asked.stop)
    if "tool_calls" in message:
        message["tool_calls"] = _with_ids(message["tool_calls"], place, asked.messages)
    finish: Finish = completion.finish_reason
    if finish == "stop" and "tool_calls" in message:
        finish = "tool_calls"
    return Choice(
        call=call,
        message=message,
        finish=finish,
        stop=stop,
        tokens=len(completion.token_ids),
        reasoning_tokens=_thought(completion.token_ids, renderer.reasoning_ids),
        sampled=_tokens(completion, renderer) if asked.logprobs else (),
    )


def _stopped_at(text: str, stops: Sequence[str]) -> str | None:
    """The text that ended a reply: the one that comes first in it."""
    found = [(text.find(stop), -len(stop), stop) for stop in stops if stop in text]
    return min(found)[2] if found else None


def _before(content: str, stops: Sequence[str]) -> str:
    """Clients are not told the text that ended a reply."""
    return content[: min((content.find(stop) for stop in stops if stop in content), default=len(content))]


def _with_ids(calls: Sequence[dict[str, Any]], place: str, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Calls of tools with ids that no other in the conversation has: clients find results by them.

    Templates may show ids, so that new ones follow from the conversation and not from the order of arrival.
    """
    taken = {each["id"] for message in messages for each in message.get("tool_calls", ())}
    named = list[dict[str, Any]]()
    for at, each in enumerate(calls):
        free = each["id"] and each["id"] not in taken
        name = each["id"] if free else f"call_{blake2b(f'{place} {at}'.encode(), digest_size=12).hexdigest()}"
        taken.add(name)
        named.append(each | {"id": name})
    return named


def _thought(ids: NDArray[np.int32], reasoning_ids: tuple[int, int] | None) -> int:
    """How many tokens stand before the end of the thoughts, itself included."""
    ends = np.flatnonzero(ids == reasoning_ids[1]) if reasoning_ids is not None else np.empty(0, np.int32)
    return int(ends[-1]) + 1 if ends.size else 0


def _tokens(completion: Completion, renderer: Renderer) -> list[SampledToken]:
    top = completion.top

    def named(token: Any, logprob: Any) -> SampledToken:
        return SampledToken(text=renderer.text([int(token)]), logprob=float(logprob))

    both = zip(completion.token_ids, completion.logprobs, strict=True)
    sampled = [named(*each) for each in both]
    if top is None:
        return sampled
    tops = [tuple(map(named, *row)) for row in zip(top.ids, top.logprobs, strict=True)]
    return [replace(each, top=likeliest) for each, likeliest in zip(sampled, tops, strict=True)]
