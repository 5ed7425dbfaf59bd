"""Paths for models, and paths of messages without ``/v1``."""

from __future__ import annotations

import json
from urllib.request import Request, urlopen

import pytest
from gateway_clients import anthropic_client, openai_client
from gateway_world import World


def test_model_is_found_under_any_name(world: World) -> None:
    with openai_client(world) as client:
        assert client.models.retrieve("org/gpt-4").id == "org/gpt-4"
        assert [model.id for model in client.models.list()] == ["tiny"]
    with anthropic_client(world) as client:
        assert client.models.retrieve("claude").display_name == "claude"


@pytest.mark.parametrize("path", ["messages", "messages/count_tokens", "v1/messages"])
def test_messages_are_answered_without_v1(world: World, path: str) -> None:
    session = world.open()
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    headers = {"x-api-key": session.key, "content-type": "application/json"}
    request = Request(f"{session.anthropic_url()}/{path}", json.dumps(body).encode(), headers)
    with urlopen(request) as response:
        assert json.load(response)
