"""A harness of verifiers: the chat loop of its harness `null`, in this process instead of a new one per rollout."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import verifiers.v1 as vf
from pydantic import PrivateAttr
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.compaction import CONTEXT_OVERFLOW_MARKERS, bound_tool_message
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

__all__ = ["Chat"]

Post = Callable[[str, str, Mapping[str, Any]], Awaitable[tuple[int, bytes]]]
"""Takes a path, a key and a JSON object, sends them to the interception server, and returns the answer."""
TOO_LONG = (400, 413)


class ChatConfig(vf.HarnessConfig):
    """Settings of `Chat`."""

    _post: Post | None = PrivateAttr(None)

    def connect(self, post: Post) -> None:
        """Set the connection to the interception server, which all rollouts share."""
        self._post = post

    async def post(self, path: str, key: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
        assert self._post is not None, "no environment is being served"
        return await self._post(path, key, body)


class Chat(vf.Harness[ChatConfig]):
    """Calls the model and the tools of the task until a response calls no tool."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    SUPPORTS_TOOL_INTERCEPTION = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        tool_interception_url: str | None = None,
    ) -> vf.ProgramResult:
        """Run the loop to its end. See `Harness.launch`."""
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages.extend(map(message_to_wire, prompt or ()))
        async with AsyncExitStack() as stack:
            timeout = self.config.tool_timeout
            named = {name: {"url": url, "timeout": timeout} for name, url in mcp_urls.items()}
            tools, where, servers = await connect_mcp({"mcpServers": named}, stack) if named else ([], {}, {})
            offered = {"tools": tools} if tools else {}
            while True:
                body = {"model": ctx.model, "messages": messages, **offered}
                status, answer = await self.config.post("/v1/chat/completions", secret, body)
                if status != 200:
                    return _make_failure(status, answer)
                message = _drop_empty_fields(json.loads(answer)["choices"][0]["message"])
                messages.append(message)
                calls = message.get("tool_calls") or ()
                if not calls:
                    return vf.ProgramResult(0, "", "")
                for call in calls:
                    denied = await self._deny(secret, call) if tool_interception_url else None
                    result = denied or {
                        "role": "tool",
                        "tool_call_id": call["id"],
                        "content": await _run_tool(call["function"], servers, where),
                        "name": call["function"]["name"],
                    }
                    messages.append(bound_tool_message(result))

    async def _deny(self, secret: str, call: Mapping[str, Any]) -> dict[str, Any] | None:
        """Ask the task if a tool call may run. Return the message that replaces its result, or None."""
        function = call["function"]
        arguments = _parse_arguments(function["arguments"])
        body = {"tool_call_id": call["id"], "name": function["name"], "arguments": arguments}
        status, answer = await self.config.post("/tool", secret, body)
        if status != 200:
            raise RuntimeError(f"the tool gate answered {status}: {answer[:500]!r}")
        decision = json.loads(answer)
        if decision["action"] == "stop":
            raise RuntimeError(decision["reason"])
        message: dict[str, Any] | None = decision["message"] if decision["action"] == "deny" else None
        return message


async def _run_tool(function: Mapping[str, Any], servers: dict[str, Any], where: dict[str, Any]) -> Any:
    """Return the result of a tool, or the error that the model sees."""
    name, arguments = function["name"], _parse_arguments(function["arguments"])
    if not isinstance(arguments, dict):
        return f"error: the arguments of {name!r} are not a JSON object; call it again with an object"
    if name not in where:
        return f"error: unknown tool {name!r}"
    return await call_mcp(servers, where, name, arguments)


def _parse_arguments(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except json.JSONDecodeError:
        return arguments


def _drop_empty_fields(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a response as a message of the next request, without its empty fields."""
    return {name: value for name, value in message.items() if value is not None}


def _make_failure(status: int, answer: bytes) -> vf.ProgramResult:
    """Return the result after a failed call. A full context ends the episode, and its rewards apply."""
    text = answer.decode(errors="replace")
    full = status in TOO_LONG and any(marker in text.casefold() for marker in CONTEXT_OVERFLOW_MARKERS)
    return vf.ProgramResult(0, "", "") if full else vf.ProgramResult(1, "", f"HTTP {status}: {text}")
