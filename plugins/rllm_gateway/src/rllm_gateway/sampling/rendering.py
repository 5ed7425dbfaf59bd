"""Render a request to the tokens of its prompt, and parse sampled tokens to a response.

The tokens of an earlier call are reused unchanged. Only later messages are rendered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion
from rllm_core.contracts.renderer import PlainTextRenderer, Renderer
from rllm_core.data.messages import Message
from rllm_core.errors import RolloutError, failures_as
from rllm_core.rollout.conversation import without_earlier_reasoning
from rllm_gateway.apis.exchange import REASONING, Choice, Finish, ModelRequest, SampledToken
from rllm_gateway.apis.fields import invalid
from rllm_gateway.apis.structured import call_in
from rllm_gateway.calls.rows import CallRow, count_tokens, prompt_ids
from rllm_gateway.sessions.live_session import LiveSession

LARGE = 100_000
"""Number of characters above which a prompt is rendered in a thread, because it would block other requests."""
_BESIDE = ThreadPoolExecutor(1, "rllm-gateway-rendering")
"""Renders one prompt at a time, because each needs memory."""
Ids = NDArray[np.int32]


@dataclass(frozen=True)
class _Turn:
    """A call that a prompt continues."""

    prompt_ids: Ids
    response_ids: Ids


async def render(session: LiveSession, request: ModelRequest, renderer: Renderer) -> tuple[Ids, int]:
    """Return the (n,) tokens of a prompt, and the number of tokens it shares with the parent's prompt and response.

    A large prompt is rendered in a thread, so that other requests are answered meanwhile. `LiveSession.locate` returns
    the request.

    Raises:
        RefusedError: the renderer of the model does not support these messages, or lacks one of the request's stop
            tokens.
    """
    if request.prompt_ids is not None:
        _check_stop_ids(request, renderer)
        return request.prompt_ids, 0 if request.parent is None else count_tokens(session.lineage(request.parent))
    if request.characters <= LARGE:
        return _prompt_of(session, request, renderer)
    return await asyncio.get_running_loop().run_in_executor(_BESIDE, _prompt_of, session, request, renderer)


async def encode_prompt(session: LiveSession, request: ModelRequest, renderer: Renderer) -> ModelRequest:
    """Return a request whose prompt, if it is text, is tokens too. A large text is encoded in a thread.

    Raises:
        RefusedError: the text is too long, or the renderer does not encode plain text.
    """
    if request.prompt_text is None:
        return request
    if not isinstance(renderer, PlainTextRenderer):
        raise invalid(
            "This run's renderer does not encode plain text. Send token ids, or use chat completions.",
            request.prompt_parameter,
            "plain_text_unsupported",
        )
    session.refuse_too_long(request)
    encode = partial(renderer.encode, request.prompt_text, add_special_tokens=request.adds_special_tokens)
    is_large = request.characters > LARGE
    ids = await asyncio.get_running_loop().run_in_executor(_BESIDE, encode) if is_large else encode()
    if not len(ids):
        raise invalid(f"{request.prompt_parameter} has no tokens.", request.prompt_parameter)
    return replace(request, prompt_ids=ids)


def _check_stop_ids(request: ModelRequest, renderer: Renderer) -> None:
    if unknown := request.stop_ids - renderer.stop_ids:
        raise invalid(
            f"stop_token_ids has {sorted(unknown)!s:.80}; responses of this run end at {sorted(renderer.stop_ids)}.",
            "stop_token_ids",
            "unsupported_parameter",
        )


def _prompt_of(session: LiveSession, request: ModelRequest, renderer: Renderer) -> tuple[Ids, int]:
    try:
        with failures_as(RolloutError, "The renderer of the model"):
            return _render_request(session, request, renderer)
    except RolloutError as error:
        raise invalid(str(error), request.prompt_parameter) from error


def _render_request(session: LiveSession, request: ModelRequest, renderer: Renderer) -> tuple[Ids, int]:
    accumulate_reasoning = session.spec.accumulate_reasoning
    if request.parent is None:
        return renderer.prompt(_list_messages(request, accumulate_reasoning), request.tools), 0
    lineage = session.lineage(request.parent)
    before, sampled = prompt_ids(lineage), request.parent.response_ids
    shown = before, sampled
    if not accumulate_reasoning and renderer.reasoning_ids is not None and of_user(request.new_messages):
        shown = without_earlier_reasoning(_turns_since_user(lineage, before), renderer.reasoning_ids)
    ids = renderer.bridge(*shown, request.new_messages, request.tools)
    if ids is None:
        ids = renderer.prompt(_list_messages(request, accumulate_reasoning), request.tools)
    elif shown[0] is before and shown[1] is sampled:
        return ids, len(before) + len(sampled)
    return ids, _count_common_prefix(np.concatenate((before, sampled)), ids)


def of_user(messages: Sequence[Message]) -> bool:
    return any(message["role"] == "user" for message in messages)


def _count_common_prefix(one: Ids, other: Ids) -> int:
    """Return the length of the common prefix of two prompts."""
    most = min(len(one), len(other))
    differs = np.flatnonzero(one[:most] != other[:most])
    return int(differs[0]) if differs.size else most


def _turns_since_user(lineage: Sequence[CallRow], before: Ids) -> list[_Turn]:
    """Return the calls since the last user message. Their reasoning is still in the prompt.

    `before` is the prompt of the last call.
    """
    turns, row = [_Turn(before, lineage[-1].response_ids)], lineage[-1]
    while row.parent is not None and not of_user(row.messages) and row.kept_tokens is None:
        # The prompt of this row begins with the whole prompt and response of its parent.
        before = before[: len(before) - len(row.new_ids)]
        lineage = lineage[:-1]
        row = lineage[-1]
        before = before[: len(before) - len(row.response_ids)]
        turns.insert(0, _Turn(before, row.response_ids))
    return turns


def _list_messages(request: ModelRequest, accumulate_reasoning: bool) -> list[Message]:
    """Return the messages for a whole prompt, with the sampled responses.

    Reasoning is kept only after the last user message, unless `accumulate_reasoning` is set.
    """
    messages, shown, over = request.messages, list[Message](), False
    for at in reversed(range(len(messages))):
        row = request.sampled.get(at)
        message = messages[at] if row is None else row.response
        if over and not accumulate_reasoning and REASONING in message:
            message = {key: value for key, value in message.items() if key != REASONING}
        over = over or message["role"] == "user"
        shown.insert(0, message)
    return shown


def choice_of(
    call: str, name_in_session: str, request: ModelRequest, prompt_ids: Ids, completion: Completion, renderer: Renderer
) -> Choice:
    """Parse a response with the renderer. Text from the model never raises an error.

    Args:
        call: id of the call.
        name_in_session: name of the call within its session. It is the same in each try of a rollout.
        request: the request.
        prompt_ids: tokens of the prompt.
        completion: the sampled tokens.
        renderer: renderer of the model.
    """
    response = renderer.parse(prompt_ids, completion.token_ids, request.tools)
    message: dict[str, Any] = (
        {"role": "assistant", "content": response.text} if request.is_plain else {**response.message}
    )
    if (
        request.response_format is not None
        and "tool_calls" not in message
        and (calls := call_in(message["content"], request.tools))
    ):
        message |= {"content": "", "tool_calls": calls}
    stop = _stopped_at(response.text, request.stop)
    if stop is not None:
        message["content"] = _before(message["content"], request.stop)
    if "tool_calls" in message:
        message["tool_calls"] = _with_ids(message["tool_calls"], name_in_session, request)
    finish: Finish = completion.finish_reason
    if finish == "stop" and "tool_calls" in message:
        finish = "tool_calls"
    return Choice(
        call=call,
        message=message,
        finish=finish,
        stop=stop,
        token_ids=completion.token_ids,
        reasoning_tokens=_count_reasoning_tokens(completion.token_ids, renderer.reasoning_ids),
        sampled=_tokens(completion, renderer) if request.logprobs else (),
    )


def _stopped_at(text: str, stops: Sequence[str]) -> str | None:
    """Return the stop string that comes first in a response. None if it contains none."""
    found = [(text.find(stop), -len(stop), stop) for stop in stops if stop in text]
    return min(found)[2] if found else None


def _before(content: str, stops: Sequence[str]) -> str:
    """Return the content before the first stop string, because clients do not get the stop string."""
    return content[: min((content.find(stop) for stop in stops if stop in content), default=len(content))]


def _with_ids(calls: Sequence[dict[str, Any]], name_in_session: str, request: ModelRequest) -> list[dict[str, Any]]:
    """Give tool calls ids that are unique in the conversation, because clients match results by id.

    Templates may show ids. So new ids depend on the conversation, not on the order in which requests arrive.
    """
    earlier = [each["id"] for message in request.messages for each in message.get("tool_calls", ())]
    if request.numbered_calls:
        return [each | {"id": f"call_{at}"} for at, each in enumerate(calls, len(earlier))]
    taken = set(earlier)
    renamed = list[dict[str, Any]]()
    for at, each in enumerate(calls):
        free = each["id"] and each["id"] not in taken
        name = each["id"] if free else f"call_{blake2b(f'{name_in_session} {at}'.encode(), digest_size=12).hexdigest()}"
        taken.add(name)
        renamed.append(each | {"id": name})
    return renamed


def _count_reasoning_tokens(ids: Ids, reasoning_ids: tuple[int, int] | None) -> int:
    """Return the number of tokens up to the end mark of the reasoning, the mark included."""
    ends = np.flatnonzero(ids == reasoning_ids[1]) if reasoning_ids is not None else np.empty(0, np.int32)
    return int(ends[-1]) + 1 if ends.size else 0


def _tokens(completion: Completion, renderer: Renderer) -> list[SampledToken]:
    top = completion.top

    def name_token(token: Any, logprob: Any) -> SampledToken:
        return SampledToken(id=int(token), text=renderer.text([int(token)]), logprob=float(logprob))

    both = zip(completion.token_ids, completion.logprobs, strict=True)
    sampled = [name_token(*each) for each in both]
    if top is None:
        return sampled
    tops = [tuple(map(name_token, *row)) for row in zip(top.ids, top.logprobs, strict=True)]
    return [replace(each, top=likeliest) for each, likeliest in zip(sampled, tops, strict=True)]
