"""Long prompts are rejected before they are rendered, or rendered outside the event loop."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest
from gateway_world import World

from rllm_gateway.sampling.rendering import LARGE
from rllm_gateway.sessions.live_session import CHARACTERS_OF_A_TOKEN

ROOM = 10


def body_of(api: str, characters: int) -> dict[str, Any]:
    said = [{"role": "user", "content": "x" * characters}]
    if api == "responses":
        return {"model": "m", "max_output_tokens": 5, "input": said}
    return {"model": "m", "max_tokens": 5, "messages": said}


@pytest.fixture
def threads(world: World, monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Return the threads that render prompts."""
    assert world.gateway._attached is not None
    renderer: Any = world.gateway._attached.renderer
    prompt, found = renderer.prompt, list[threading.Thread]()

    def noted(*given: Any) -> Any:
        found.append(threading.current_thread())
        return prompt(*given)

    monkeypatch.setattr(type(renderer), "prompt", lambda self, *given: noted(*given))
    return found


def post(world: World, api: str, characters: int, **spec: Any) -> httpx.Response:
    opened = world.open(**spec)
    headers = {"authorization": f"Bearer {opened.key}"}
    answer = httpx.post(f"{opened.openai_url()}/{api}", json=body_of(api, characters), headers=headers, timeout=60)
    trace = world.close(opened)
    assert trace.too_long == (answer.status_code == 400)
    assert trace.requests == ("count_tokens" not in api)
    return answer


@pytest.mark.parametrize("api", ["chat/completions", "responses", "messages", "messages/count_tokens"])
def test_too_large_prompt_is_rejected_before_rendering(world: World, threads: list[Any], api: str) -> None:
    answer = post(world, api, ROOM * CHARACTERS_OF_A_TOKEN, max_prompt_length=ROOM)
    assert (answer.status_code, threads) == (400, [])
    assert "10 tokens" in answer.json()["error"]["message"]


def test_a_large_prompt_is_rendered_in_a_thread(world: World, threads: list[Any]) -> None:
    world.policy.max_context = 10 * LARGE
    small, large = post(world, "messages/count_tokens", 1), post(world, "chat/completions", LARGE)
    assert (small.status_code, large.status_code) == (200, 200)
    assert threads[0] is not threads[1]
