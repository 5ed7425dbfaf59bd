"""`rllm_gateway.client` in rLLM's spelling: a client is made once, and sessions say what its calls are about."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import pytest
from gateway_world import World

from rllm_gateway.client import get_chat_client, get_chat_client_async, reward, session
from rllm_gateway.sessions.link import OpenedSession

if TYPE_CHECKING:
    import openai

HI: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
def opened(world: World, monkeypatch: pytest.MonkeyPatch) -> OpenedSession:
    """A session that this process finds in its environment, as an agent does."""
    opened = world.open(group_key="part", name_key="who")
    monkeypatch.setenv("RLLM_SESSION_URL", opened.url)
    monkeypatch.setenv("OPENAI_API_KEY", opened.key)
    return opened


def said_of(world: World, opened: OpenedSession) -> list[tuple[str, str | None, str | None]]:
    """Role, name and group of each call; closes the session."""
    return [(call.role, call.name, call.group) for call in world.close(opened).calls]


def test_early_client_follows_the_current_session(world: World, opened: OpenedSession) -> None:
    with get_chat_client() as client:
        with session("solver"):
            client.chat.completions.create(model="m", messages=HI)
            with session(part="x"):
                client.chat.completions.create(model="m", messages=HI)
        with session(who="judge", part="y"):
            client.chat.completions.create(model="m", messages=HI)
        client.chat.completions.create(model="m", messages=HI)
    expected = [("solver", None, None), ("solver", None, "x"), ("agent", "judge", "y"), ("agent", None, None)]
    assert said_of(world, opened) == expected


def test_an_async_client_follows_each_task(world: World, opened: OpenedSession) -> None:
    async def ask(client: openai.AsyncOpenAI, part: str) -> None:
        with session(part=part):
            await asyncio.sleep(0)
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": part}])

    async def ask_all() -> None:
        async with get_chat_client_async() as client:
            await asyncio.gather(*(ask(client, part) for part in "abc"))

    asyncio.run(ask_all())
    assert sorted(said_of(world, opened), key=str) == [("agent", None, part) for part in "abc"]


def test_thread_has_the_session_of_its_client(world: World, opened: OpenedSession) -> None:
    with session("solver", part="x"), get_chat_client() as client, ThreadPoolExecutor(1) as threads:
        threads.submit(client.chat.completions.create, model="m", messages=HI).result()
    assert said_of(world, opened) == [("solver", None, "x")]


def test_the_address_and_key_of_the_session_count(world: World, opened: OpenedSession) -> None:
    with get_chat_client(base_url="http://127.0.0.1:9/v1", api_key="token-abc123") as client:
        assert client.chat.completions.create(model="m", messages=HI).choices[0].message.content == "hello"
    assert said_of(world, opened) == [("agent", None, None)]


def test_options_of_the_client_are_its_own(world: World, opened: OpenedSession) -> None:
    import openai

    seen: list[str] = []
    http = openai.DefaultHttpxClient(event_hooks={"request": [lambda request: seen.append(request.method)]})
    for _ in range(2):
        client = get_chat_client(http_client=http, max_retries=0, default_headers={"X-Rllm-Metadata": '{"part": "z"}'})
        with session("solver", part="x"):
            client.with_options(timeout=30).chat.completions.create(model="m", messages=HI)
    http.close()
    assert seen == ["POST", "POST"]
    assert said_of(world, opened) == [("solver", None, "z")] * 2


@pytest.mark.parametrize("role", ["a/b", ".", "..", "v1", "", "x" * 65])
@pytest.mark.usefixtures("opened")
def test_a_role_that_no_url_has_is_refused(role: str) -> None:
    with pytest.raises(ValueError, match="the role"), session(role):
        pass


@pytest.mark.parametrize("make", [get_chat_client, get_chat_client_async])
def test_without_a_session_there_is_no_client(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLLM_SESSION_URL", raising=False)
    with pytest.raises(RuntimeError, match="`rllm train --agent`"):
        make()


class Stranger(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_error(404)

    def log_message(self, *words: Any) -> None:
        """Nothing of it is of interest."""


def _session_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLLM_SESSION_URL", url)
    monkeypatch.setenv("OPENAI_API_KEY", "k")


def test_reward_at_other_server_is_connection_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with HTTPServer(("127.0.0.1", 0), Stranger) as server:
        Thread(target=server.handle_request).start()
        _session_at(f"http://127.0.0.1:{server.server_port}", monkeypatch)
        with pytest.raises(ConnectionError, match="no gateway"):
            reward(1.0)


def test_rejected_reward_has_the_gateway_s_reason(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _session_at(f"{world.url}/s/unknown", monkeypatch)
    with pytest.raises(HTTPError, match="API key"):
        reward(1.0)
