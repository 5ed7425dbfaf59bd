"""Digests of conversations. By them what a client repeats is recognised, in whatever order its keys are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import orjson

from rllm_core.data.messages import Message, Tool

SIZE = 16
REASONING = "reasoning_content"
"""Clients may leave it out when they repeat a message."""


def root_digest(role: str, tools: Sequence[Tool], template_options: Mapping[str, Any]) -> bytes:
    """16 bytes that stand for what comes before the first message."""
    said = orjson.dumps([role, tools, template_options], option=orjson.OPT_SORT_KEYS)
    return blake2b(said, digest_size=SIZE).digest()


def next_digest(before: bytes, message: Message) -> bytes:
    """The digest of a conversation with one more message."""
    return blake2b(before + _canonical(message), digest_size=SIZE).digest()


def chained(root: bytes, messages: Sequence[Message]) -> list[bytes]:
    """The digests of a conversation after each of its messages."""
    digests = list[bytes]()
    for message in messages:
        root = next_digest(root, message)
        digests.append(root)
    return digests


def _canonical(message: Message) -> bytes:
    """The same for messages that mean the same: arguments of tools as objects, keys in order."""
    if "tool_calls" in message or REASONING in message:
        said = {key: value for key, value in message.items() if key not in (REASONING, "tool_calls")}
        calls = message.get("tool_calls") or ()
        # The reader of a request and the parser of a reply have seen to it that arguments are JSON.
        said["tool_calls"] = [
            [call["id"], call["function"]["name"], orjson.loads(call["function"]["arguments"])] for call in calls
        ]
        message = said if calls else {key: value for key, value in said.items() if key != "tool_calls"}
    return orjson.dumps(message, option=orjson.OPT_SORT_KEYS)
