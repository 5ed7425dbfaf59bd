"""Whatever is sent, the client is told what is wrong with it, in its own shape; nothing is a fault of the gateway's."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from expecting import expect_error
from gateway_world import World, running
from prometheus_client.parser import text_string_to_metric_families

from rllm_gateway.serving.gateway import GatewayLimits, SessionError
from rllm_gateway.sessions.link import OpenedSession

MESSAGE = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "x"}]}
USE = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
WHOLE: dict[str, dict[str, Any]] = {
    "chat/completions": {
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "x"}], "name": "n"},
            MESSAGE,
            {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "r"},
            {"role": "tool", "tool_call_id": "c", "content": "x"},
        ],
        "tools": [
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}, "strict": True}}
        ],
        "tool_choice": "auto",
        "n": 1,
        "max_tokens": 5,
        "max_completion_tokens": 5,
        "stop": ["x"],
        "logprobs": True,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "text"},
        "metadata": {"a": "b"},
    },
    "completions": {"prompt": "x", "max_tokens": 5, "n": 1, "stop": ["x"], "logprobs": 0},
    "responses": {
        "instructions": "be kind",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
        ],
        "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {}}],
        "text": {"format": {"type": "text"}},
        "include": ["message.output_text.logprobs"],
        "max_output_tokens": 5,
        "tool_choice": "auto",
        "metadata": {"a": "b"},
    },
    "messages": {
        "max_tokens": 5,
        "system": [{"type": "text", "text": "be kind"}],
        "messages": [
            MESSAGE,
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}, USE]},
            {"role": "user", "content": [RESULT, {"type": "text", "text": "x"}]},
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": {}}],
        "tool_choice": {"type": "auto"},
        "stop_sequences": ["x"],
        "metadata": {"user_id": "u"},
        "output_config": {"effort": "low"},
    },
    "models/m:generateContent": {
        "systemInstruction": {"parts": [{"text": "be kind"}]},
        "contents": [
            {"role": "user", "parts": [{"text": "x"}]},
            {"role": "model", "parts": [{"text": "t", "thought": True}, {"functionCall": {"name": "f", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "x"}}}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "f", "description": "d", "parameters": {"type": "OBJECT"}}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
        "generationConfig": {
            "candidateCount": 1,
            "maxOutputTokens": 5,
            "stopSequences": ["x"],
            "responseLogprobs": True,
            "responseMimeType": "text/plain",
            "thinkingConfig": {"includeThoughts": True},
        },
        "labels": {"a": "b"},
    },
}
WHOLE |= {api: {"model": "m", "stream": False, **WHOLE[api]} for api in [*WHOLE][:4]}
GOOGLE = {"INVALID_ARGUMENT": "invalid_request_error", "PERMISSION_DENIED": "permission_error"}
"""Google's status -> OpenAI's type of error."""
STRANGE: list[Any] = [None, True, -1, 1.5, 10**30, "", "x", [], [None], [[]], {}, {"type": 1}, {"type": "x"}, ["x", 1]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    limits = GatewayLimits(body_bytes=100_000, in_flight_of_session=1)
    with running(tmp_path_factory.mktemp("hostile"), limits) as world:
        yield world


@pytest.fixture(scope="module")
def session(world: World) -> OpenedSession:
    return world.open(max_calls=1_000_000, reward_source="agent")


@pytest.fixture(scope="module")
def client(session: OpenedSession) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {session.key}", "x-rllm-reward-key": session.reward_key}
    with httpx.Client(base_url=session.openai_url(), headers=headers, timeout=60) as client:
        yield client


def kind_of_error(api: str, answer: httpx.Response) -> str:
    """The type of an error in the shape of the client of this API."""
    said = answer.json()
    if api == "messages":
        assert said["type"] == "error"
    error = said["error"]
    assert isinstance(error["message"], str)
    assert error["message"]
    return str(error["type"] if "type" in error else GOOGLE[error["status"]])


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place inside a body."""
    if path:
        yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield from places(each, (*path, key))


def replace_at(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(body))
    inside = copy
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return copy


@pytest.mark.parametrize("api", WHOLE)
def test_a_body_with_everything_is_answered(client: httpx.Client, api: str) -> None:
    answer = client.post(api, json=WHOLE[api])
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "api", [pytest.param(api, marks=pytest.mark.smoke if api == "responses" else pytest.mark.long) for api in WHOLE]
)
def test_wrong_type_anywhere_is_answered_or_rejected(client: httpx.Client, api: str) -> None:
    statuses = set()
    for path in places(WHOLE[api]):
        for value in STRANGE:
            answer = client.post(api, json=replace_at(WHOLE[api], path, value))
            assert answer.status_code in (200, 400), (path, value, answer.text)
            if answer.status_code == 400:
                assert kind_of_error(api, answer) == "invalid_request_error"
            statuses.add(answer.status_code)
    assert statuses == {200, 400}


@pytest.mark.parametrize("api", WHOLE)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"1",
        b'"x"',
        b"\xff\xfe",
        b'{"model": "\\ud800"}',
        b'{"temperature": NaN}',
        b'{"messages": ' + b"[" * 50_000,
        b'{"metadata": ' + b'{"a":' * 300 + b"1" + b"}" * 301,
        b"{}",
        b'{"messages": [], "input": []}',
    ],
)
def test_a_body_that_is_no_request(client: httpx.Client, api: str, body: bytes) -> None:
    answer = client.post(api, content=body)
    assert answer.status_code == 400
    assert kind_of_error(api, answer) == "invalid_request_error"


@pytest.mark.parametrize("api", WHOLE)
def test_halves_of_characters_are_replaced(client: httpx.Client, api: str) -> None:
    body = json.dumps(WHOLE[api]).replace('"x"', '"caf\\udce9"')
    answer = client.post(api, content=body.encode())
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("api", "kind"), [("messages", "request_too_large"), ("responses", "invalid_request_error")])
def test_a_body_that_is_too_large(client: httpx.Client, api: str, kind: str) -> None:
    answer = client.post(api, content=b'{"messages": "' + b"x" * 200_000 + b'"}')
    assert answer.status_code == 413
    assert kind_of_error(api, answer) == kind


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 404),
        ("/v1/chat/completions", 404),
        ("/admin", 404),
        ("/s/{id}/agent/v1/chat/completions/", 404),
        ("/s/{id}/agent/v1/files", 404),
        ("/s/{id}/ag%20ent/v1/chat/completions", 400),
        ("/s/{id}/%2e%2e/v1/chat/completions", 400),
        ("/s/{id}/%2e/v1/reward", 400),
        ("/s/{id}/" + "r" * 65 + "/v1/chat/completions", 400),
        ("/s/nobody/agent/v1/chat/completions", 401),
        ("/s/%00/agent/v1/chat/completions", 401),
        ("/s/" + "x" * 2000 + "/agent/v1/chat/completions", 401),
    ],
)
def test_paths(client: httpx.Client, session: OpenedSession, world: World, path: str, status: int) -> None:
    answer = client.post(f"{world.url}{path.replace('{id}', session.id)}", json=WHOLE["chat/completions"])
    assert answer.status_code == status
    kind_of_error("chat", answer)


def test_health_without_a_key_is_ok(world: World) -> None:
    answer = httpx.get(f"{world.url}/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert httpx.post(f"{world.url}/health").status_code == 405


def test_prometheus_reads_sessions_without_a_key(world: World) -> None:
    world.open()
    answer = httpx.get(f"{world.url}/metrics")
    read = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert {family.type for family in read.values()} == {"gauge"}
    assert all(family.documentation for family in read.values())
    values = {name: family.samples[0].value for name, family in read.items()}
    assert values["rllm_gateway_open_sessions"] >= 1
    assert values["rllm_gateway_is_attached"] == 1
    assert values["rllm_gateway_requests_in_flight"] == 0


@pytest.mark.parametrize("id", [".", ".."])
def test_a_session_that_no_path_has_is_refused(world: World, id: str) -> None:
    with expect_error(SessionError, "wrong-value"):
        world.open(id=id)


def test_a_path_authorises_nothing(world: World, session: OpenedSession) -> None:
    other = world.open()
    with httpx.Client(base_url=other.openai_url()) as client:
        for headers in ({}, {"authorization": session.key}, {"authorization": f"Bearer {session.key}"}):
            assert client.post("responses", json=WHOLE["responses"], headers=headers).status_code == 401
        for headers in ({"authorization": f"bearer {other.key}"}, {"x-api-key": other.key}):
            assert client.post("responses", json=WHOLE["responses"], headers=headers).status_code == 200


@pytest.mark.parametrize("key", ["", "Bearer", "Basic x", "Bearer \xe9", "Bearer " + "x" * 5000])
def test_keys_that_are_none(world: World, session: OpenedSession, key: str) -> None:
    headers = {"authorization": key.encode("latin-1")}
    answer = httpx.post(f"{session.openai_url()}/responses", json=WHOLE["responses"], headers=headers)
    assert answer.status_code == 401
    assert kind_of_error("responses", answer) == "authentication_error"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.evil.example:80"])
def test_foreign_host_name_is_rejected_as_web_page(client: httpx.Client, host: str) -> None:
    for api, body in WHOLE.items():
        answer = client.post(api, json=body, headers={"host": host})
        assert (answer.status_code, kind_of_error(api, answer)) == (403, "permission_error")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-rllm-metadata": "{"}, 400),
        ({"x-rllm-metadata": "[1]"}, 400),
        ({"x-stainless-retry-count": "-1"}, 200),
        ({"x-stainless-retry-count": "9" * 5000}, 200),
        ({"content-encoding": "gzip"}, 415),
    ],
)
def test_headers_are_ignored_or_named(client: httpx.Client, headers: dict[str, str], status: int) -> None:
    answer = client.post("responses", json=WHOLE["responses"], headers=headers)
    assert answer.status_code == status
    assert status != 400 or answer.json()["error"]["message"].startswith("The header X-Rllm-Metadata ")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods(client: httpx.Client, method: str) -> None:
    assert client.request(method, "chat/completions").status_code == 405


@pytest.mark.parametrize("reward", ["1", None, True, [], float("1e400")])
def test_rewards_that_are_no_numbers(client: httpx.Client, reward: Any) -> None:
    body = json.dumps({"reward": reward})
    assert client.post("reward", content=body.replace("Infinity", "1e400")).status_code == 400


def test_too_many_requests_at_once_are_rejected(world: World) -> None:
    own = world.open()
    url, headers = f"{own.openai_url()}/responses", {"x-api-key": own.key}
    world.policy.asked.clear()
    world.policy.go.clear()
    first = threading.Thread(target=lambda: httpx.post(url, json=WHOLE["responses"], headers=headers, timeout=60))
    first.start()
    assert world.policy.asked.wait(60)
    answer = httpx.post(url, json=WHOLE["responses"], headers=headers)
    world.policy.go.set()
    first.join()
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


def test_addresses_in_requests_are_never_opened(client: httpx.Client, world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        url = f"http://127.0.0.1:{elsewhere.getsockname()[1]}"
        named = {"url": url, "base_url": url, "api_base": url, "worker_id": url}
        for path in ("/admin/workers", "/admin/flush", "/sessions", "/add_worker"):
            assert client.post(f"{world.url}{path}", json=named).status_code == 404
        picture: Any = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"{url}/cat.png"}}]}
        mcp = {"type": "mcp", "server_label": "x", "server_url": url}
        for api, change in (
            ("chat/completions", {"messages": [picture]}),
            ("chat/completions", {"api_base": url}),
            ("responses", {"tools": [mcp]}),
            ("messages", {"mcp_servers": [{"type": "url", "url": url, "name": "x"}]}),
        ):
            assert client.post(api, json=WHOLE[api] | change).status_code == 400
        metadata = {"x-rllm-metadata": json.dumps(named), "forwarded": f"host={url}", "x-forwarded-host": url}
        answer = client.post("chat/completions", json=WHOLE["chat/completions"] | {"model": url}, headers=metadata)
        assert answer.status_code == 200
        elsewhere.setblocking(False)
        with pytest.raises(BlockingIOError):
            elsewhere.accept()
