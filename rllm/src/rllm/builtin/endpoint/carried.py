"""A renderer without a tokenizer: its token ids are handles of messages and responses, and only their number matters.

Workflows use token ids. The server has the real tokens, and reports how many a response has. The text, reasoning and
tool calls are in tables of this process, next to the ids.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.messages import Message, Response, Tool
from rllm_core.errors import RolloutError

Ids = NDArray[np.int32]
TokenIds = Sequence[int] | Ids
DIGITS = 4
"""Ids of a prompt: a digest of 128 bits."""
LARGEST = 2**31 - 1
KEPT = 1 << 16
"""Maximum number of stored prompts and responses. A prompt is used at once, a response until its conversation ends."""

ThingT = TypeVar("ThingT")


@dataclass(frozen=True)
class Prompt:
    """A request to the server: messages and tools."""

    messages: Sequence[Message]
    tools: Sequence[Tool]


class _Table(Generic[ThingT]):
    """The things that were put in last, by handle."""

    def __init__(self) -> None:
        self._things: OrderedDict[tuple[int, ...], ThingT] = OrderedDict()

    def put(self, handle: tuple[int, ...], thing: ThingT) -> None:
        self._things[handle] = thing
        self._things.move_to_end(handle)
        if len(self._things) > KEPT:
            self._things.popitem(last=False)

    def get(self, handle: tuple[int, ...]) -> ThingT | None:
        return self._things.get(handle)


class CarriedMessages:
    """Prompts and responses by handle. Handles, and the seeds derived from them, depend only on the content."""

    stop_ids: frozenset[int] = frozenset()
    reasoning_ids: tuple[int, int] | None = None

    def __init__(self) -> None:
        self._prompts = _Table[Prompt]()
        self._responses = _Table[Response]()

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Ids:
        """Return the handle of messages and tools, (4,) int32.

        Raises:
            RolloutError: they are not JSON data.
        """
        asked = Prompt([dict(message) for message in messages], [dict(tool) for tool in tools])
        handle = _handle([asked.messages, asked.tools], DIGITS)
        self._prompts.put(handle, asked)
        return np.array(handle, np.int32)

    def bridge(
        self, prompt_ids: TokenIds, response_ids: TokenIds, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> None:
        """None: every prompt is a whole conversation, which the server's template renders."""

    def response_ids(self, text: str) -> Ids:
        """Return one id for a text, (1,) int32, because its number of tokens is not known here."""
        return self.carry(Response(text=text, content=text), 1)

    def text(self, token_ids: TokenIds) -> str:
        """Return the text of a response."""
        return self._response(token_ids).text

    def token_texts(self, token_ids: TokenIds) -> list[str]:
        """Return empty strings, because a handle is not a token of the model."""
        return [""] * len(token_ids)

    def parse(self, prompt_ids: TokenIds, response_ids: TokenIds, tools: Sequence[Tool] = ()) -> Response:
        """Return the response as the server parsed it."""
        return self._response(response_ids)

    def carry(self, response: Response, tokens: int) -> Ids:
        """Return (tokens,) int32 ids for a response. At least one id, even if the server counts no token."""
        (handle,) = _handle([response.message, response.text, response.finish_reason], 1)
        while (other := self._responses.get((handle,))) is not None and other != response:
            handle = (handle + 1) % LARGEST
        self._responses.put((handle,), response)
        has_content = bool(response.text or response.tool_calls)
        return np.full(max(tokens, int(has_content)), handle, np.int32)

    def find_prompt(self, prompt_ids: TokenIds) -> Prompt:
        """Return the messages for a prompt's ids.

        Raises:
            RolloutError: the ids are unknown, for example ids of a tokenizer.
        """
        asked = self._prompts.get(tuple(int(each) for each in prompt_ids))
        if asked is None:
            raise RolloutError(
                "bad-prompt",
                "The backend 'endpoint' was given a prompt that its renderer did not make.",
                "Let the workflow build every prompt with `engine.renderer.prompt(messages)`.",
            )
        return asked

    def _response(self, response_ids: TokenIds) -> Response:
        found = self._responses.get((int(response_ids[0]),)) if len(response_ids) else None
        return Response(text="", content="") if found is None else found


def _handle(content: Any, numbers: int) -> tuple[int, ...]:
    """Return non-negative int32 numbers that identify JSON data."""
    try:
        text = json.dumps(content, default=_plain)
    except (TypeError, ValueError) as error:
        raise RolloutError(
            "not-json",
            f"A message or tool is not JSON data: {error}.",
            "Messages hold text, numbers, lists and objects.",
        ) from error
    digest = hashlib.blake2b(text.encode(), digest_size=4 * numbers).digest()
    return tuple(int(each) for each in np.frombuffer(digest, "<u4") >> 1)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} {value!r:.40}")
