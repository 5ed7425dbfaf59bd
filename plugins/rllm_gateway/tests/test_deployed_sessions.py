"""Sessions that agents open themselves, at a gateway that serves a model."""

from __future__ import annotations

import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from gateway_world import TOKEN, World, running

from rllm_gateway.calls import CallReader, StoredSession
from rllm_gateway.client import Session, current_session, deployed_session, get_chat_client, open_session
from rllm_gateway.gateway import GatewayLimits

SPEC = {"run": "deployed", "max_tokens": 50, "max_calls": 3, "temperature": 0.7}
HI: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[World]:
    with running(tmp_path, GatewayLimits(open_sessions=2), spec=SPEC) as world:
        yield world


def opened(world: World, task: Any = None, **more: Any) -> Session:
    return open_session(task, url=world.url, token=TOKEN, **more)


def ask(session: Session) -> str:
    with openai.OpenAI(base_url=session.openai_url, api_key=session.key, max_retries=0) as client:
        return str(client.chat.completions.create(model="m", messages=HI).choices[0].message.content)


def refusal(ask: Callable[[], Any]) -> int:
    """The status that a request of the client is refused with."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask()
    refused.value.close()
    return refused.value.code


def stored(directory: Path) -> list[StoredSession]:
    with CallReader.open(directory / "calls.db") as reader:
        return [reader.session(each.session.id) for each in reader.sessions()]


def test_a_session_is_opened_rewarded_and_ended(serving: World, tmp_path: Path) -> None:
    session = opened(serving, {"question": "1+1"}, task_id="sums/1")
    assert ask(session) == "hello"
    session.reward(0.5)
    session.end()
    (found,) = stored(tmp_path)
    row = found.session
    assert (row.run, row.rollout, row.metadata["task"]) == ("deployed", "sums/1:0", {"question": "1+1"})
    assert row.metadata["temperature"] == 0.7
    assert [(each.role, each.value) for each in found.rewards] == [("agent", 0.5)]
    assert found.end is not None
    assert serving.ended == [row.id]


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_session_has_the_address_of_its_request(serving: World, name: str) -> None:
    url = serving.url.replace("127.0.0.1", name)
    assert open_session(url=url, token=TOKEN).url.startswith(f"{url}/s/")


def test_sessions_of_one_task_have_ids_and_keys_of_their_own(serving: World) -> None:
    one, other = opened(serving, {"a": 1}), opened(serving, {"a": 1})
    assert one.url != other.url
    with pytest.raises(openai.AuthenticationError):
        ask(Session(other.url, one.key))


def test_an_ended_session_takes_nothing_more(serving: World) -> None:
    session = opened(serving)
    session.end()
    with pytest.raises(openai.ConflictError):
        ask(session)
    assert refusal(lambda: session.reward(1.0)) == 409
    assert refusal(session.end) == 409


@pytest.mark.parametrize("key", ["", "wrong", "Ω"])
def test_sessions_are_opened_with_the_admin_token_alone(serving: World, key: str) -> None:
    headers = {"x-api-key": key.encode()} if key else {}
    answer = httpx.post(f"{serving.url}/sessions", json={}, headers=headers)
    assert answer.status_code == 401
    assert not serving.gateway.open_sessions


def test_a_session_is_ended_with_its_own_key_alone(serving: World) -> None:
    session = opened(serving)
    for key in ("", "wrong", TOKEN):
        assert httpx.delete(session.url, headers={"x-api-key": key}).status_code == 401
    assert httpx.delete(f"{serving.url}/s/nobody", headers={"x-api-key": session.key}).status_code == 401
    assert ask(session) == "hello"


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"task": 3}', b'{"task": {}, "task_id": 3}'])
def test_a_body_that_says_no_task_is_refused(serving: World, body: bytes) -> None:
    answer = httpx.post(f"{serving.url}/sessions", content=body, headers={"x-api-key": TOKEN})
    assert answer.status_code == 400
    assert not serving.gateway.open_sessions


def test_other_methods_are_refused(serving: World) -> None:
    assert httpx.get(f"{serving.url}/sessions").status_code == 405
    assert httpx.get(f"{serving.url}/s/x").status_code == 405


def test_open_sessions_are_bounded(serving: World) -> None:
    first, _ = opened(serving), opened(serving)
    assert refusal(lambda: opened(serving)) == 429
    first.end()
    assert ask(opened(serving)) == "hello"


def test_a_gateway_of_runs_opens_none(world: World) -> None:
    assert httpx.post(f"{world.url}/sessions", json={}).status_code == 404


def test_clients_inside_belong_to_a_deployed_session(serving: World, tmp_path: Path) -> None:
    with deployed_session({"a": 1}, url=serving.url, token=TOKEN) as session:
        assert current_session() is session
        with get_chat_client() as client:
            client.chat.completions.create(model="m", messages=HI)
    assert [len(each.calls) for each in stored(tmp_path)] == [1]
    assert serving.gateway.open_sessions == 0


def test_what_is_open_ends_with_the_server(tmp_path: Path) -> None:
    with running(tmp_path, spec=SPEC) as world:
        ask(opened(world))
    (found,) = stored(tmp_path)
    assert found.end is not None


def test_the_token_is_that_of_the_user_unless_it_is_given(
    serving: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    monkeypatch.setattr("rllm_gateway.client.TOKEN_FILE", tmp_path / "token")
    assert ask(open_session(url=serving.url)) == "hello"
