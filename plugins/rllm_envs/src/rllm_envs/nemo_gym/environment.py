"""`nemo_gym`: rollouts scored by a resources server of NeMo-Gym, with the tools of that server."""

from __future__ import annotations

import asyncio
import json
import math
import ssl
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import httpx

from rllm_core.contracts.environment import Environment, Outcome
from rllm_core.data.messages import Message, Tool
from rllm_core.errors import ConfigError, RolloutError
from rllm_core.rollout.waits import Wait
from rllm_envs.nemo_gym.options import NemoGymParams

SEED, VERIFY = "/seed_session", "/verify"
SECONDS_TO_CHECK = 30.0
LONGEST_ANSWER = 500
"""Characters of a server's answer in an error."""


class NemoGym(Environment):
    """Rolls out rows of a dataset of NeMo-Gym: one session of the server, its tools, and its verification at the end.

    Cookies identify the session, so each rollout has its own. Requests are sent one after the other, in the order of
    the calls.
    """

    def __init__(self, params: NemoGymParams) -> None:
        self._params = params
        self._cookies = httpx.Cookies()
        self._row: Mapping[str, Any] = {}
        self._output: list[dict[str, Any]] = []
        """The rollout so far, as the output of a response of the Responses API."""
        self._requests = asyncio.Lock()

    async def reset(self, task: Mapping[str, Any]) -> Sequence[Message]:
        self._row = task
        await self._ask(SEED, task)
        return read_messages(task)

    def tools(self, task: Mapping[str, Any]) -> Sequence[Any]:
        schemas = read_tools(task)
        return [(schema, partial(self._run_tool, schema["function"]["name"])) for schema in schemas]

    async def step(self, action: str) -> Outcome:
        message = {
            "type": "message",
            "id": "final",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": action, "annotations": []}],
        }
        response = {
            "id": "rollout",
            "object": "response",
            "created_at": 0,
            "model": "policy",
            "output": [*self._output, message],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": self._row[CREATE].get("tools") or [],
        }
        answer = await self._ask(VERIFY, {**self._row, "response": response})
        reward = answer.get("reward") if isinstance(answer, Mapping) else None
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            cause = f"{VERIFY} of {self._params.url} gave the reward {reward!r}"
            return Outcome(reward=math.nan, reward_error=cause, done=True)
        components = answer.get("reward_components") or {}
        return Outcome(reward=float(reward), done=True, reward_components=components)

    async def _run_tool(self, tool: str, /, **arguments: Any) -> str:
        """Return the server's answer. The model reads errors too, as with NeMo-Gym's own agent."""
        async with self._requests:
            answer = await self._post(f"/{tool}", arguments)
            call = f"call-{len(self._output)}"
            self._output += [
                {
                    "type": "function_call",
                    "id": call,
                    "call_id": call,
                    "name": tool,
                    "arguments": json.dumps(arguments, ensure_ascii=False),
                    "status": "completed",
                },
                {"type": "function_call_output", "call_id": call, "output": answer.text},
            ]
        return answer.text

    async def _ask(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON answer of a request that must succeed."""
        answer = await self._post(path, body)
        if answer.status_code != httpx.codes.OK:
            raise self._failure(path, f"HTTP {answer.status_code}: {answer.text[:LONGEST_ANSWER]}")
        try:
            return answer.json()
        except ValueError:
            raise self._failure(path, f"its answer is not JSON: {answer.text[:LONGEST_ANSWER]}") from None

    async def _post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        address = self._params.url.rstrip("/") + path
        try:
            async with httpx.AsyncClient(
                cookies=self._cookies, verify=_certificates(), timeout=self._params.timeout
            ) as client:
                with Wait("environment server", address):
                    answer = await client.post(address, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._failure(path, f"{type(error).__name__}: {error}") from error
        self._cookies.update(client.cookies)
        return answer

    def _failure(self, path: str, cause: str) -> RolloutError:
        return RolloutError("environment-failed", f"{path} of {self._params.url} failed: {cause}.")


def check_server(params: NemoGymParams) -> None:
    """Ask the server for its routes. They answer 405, because they take POST only.

    Raises:
        ConfigError: it does not answer, or is no resources server.
    """
    for path in (SEED, VERIFY):
        try:
            answer = httpx.get(params.url.rstrip("/") + path, verify=_certificates(), timeout=SECONDS_TO_CHECK)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ConfigError(
                "service-unreachable",
                f"rllm.env.env_args.url: {params.url} does not answer: {type(error).__name__}: {error}.",
                "Start the resources server, and copy its address from the output of `gym env start` (NeMo-Gym).",
            ) from error
        if answer.status_code != httpx.codes.METHOD_NOT_ALLOWED:
            raise ConfigError(
                "service-unreachable",
                f"rllm.env.env_args.url: the server at {params.url} has no route POST {path}.",
                "Use the address of a resources server, and not of an agent server or a model server.",
            )


@cache
def _certificates() -> ssl.SSLContext:
    """Return the certificates of this machine. Loading them takes longer than a request."""
    return ssl.create_default_context()


CREATE = "responses_create_params"


def check_row(row: Mapping[str, Any]) -> None:
    """Read the prompt and the tools of a row.

    Raises:
        ConfigError: the row is not a row of NeMo-Gym, or has parts other than text and functions.
    """
    read_messages(row)
    read_tools(row)


def read_messages(row: Mapping[str, Any]) -> list[Message]:
    """Return the prompt of a row as chat messages.

    Raises:
        ConfigError: see `check_row`.
    """
    create = row.get(CREATE)
    if not isinstance(create, Mapping) or not create.get("input"):
        raise _not_a_row(f"it has no {CREATE}.input")
    given = create["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages: list[Message] = [{"role": item.get("role"), "content": _read_text(item)} for item in items]
    if create.get("instructions"):
        messages.insert(0, {"role": "system", "content": create["instructions"]})
    return messages


def read_tools(row: Mapping[str, Any]) -> list[Tool]:
    """Return the tools of a row as schemas of chat functions.

    Raises:
        ConfigError: see `check_row`.
    """
    tools = row[CREATE].get("tools") or ()
    if wrong := [tool.get("type") for tool in tools if tool.get("type") != "function"]:
        raise _not_a_row(f"its tool {wrong[0]!r} is not a function")
    fields = ("name", "description", "parameters")
    return [
        {"type": "function", "function": {name: tool.get(name) or _EMPTY[name] for name in fields}} for tool in tools
    ]


_EMPTY: Mapping[str, Any] = {"name": "", "description": "", "parameters": {"type": "object", "properties": {}}}


def _read_text(item: Mapping[str, Any]) -> str:
    content = item.get("content")
    if item.get("type", "message") != "message" or not isinstance(content, str | Sequence):
        raise _not_a_row(f"its input has an item {item.get('type')!r}")
    if isinstance(content, str):
        return content
    if wrong := [part.get("type") for part in content if "text" not in part]:
        raise _not_a_row(f"its input has a part {wrong[0]!r}")
    return "".join(part["text"] for part in content)


def _not_a_row(reason: str) -> ConfigError:
    return ConfigError(
        "tasks-not-for-environment",
        f"A task cannot be rolled out with a resources server of NeMo-Gym: {reason}.",
        f"Set --data to a .jsonl file of NeMo-Gym. Its rows have {CREATE} with text messages and functions.",
    )
