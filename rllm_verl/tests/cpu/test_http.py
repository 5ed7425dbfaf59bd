"""The HTTP side of a rollout server, by real HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from rllm_verl.cpu.server import RolloutServer
from rllm_verl.cpu.server_settings import ServerSettings
from rllm_verl.cpu.token_output import Response

DEADLINE = 100.0
SAMPLING: dict[str, Any] = {"max_tokens": 6, "seed": 11, "temperature": 0.8}


@dataclass(frozen=True)
class Served:
    """A server on the event loop of another thread."""

    address: str
    server: RolloutServer
    loop: asyncio.AbstractEventLoop

    def sampled(self, prompt: list[int]) -> Response:
        """By the token API."""
        call = self.server.generate(prompt, SAMPLING | {"logprobs": True}, "token-api")
        return asyncio.run_coroutine_threadsafe(call, self.loop).result(DEADLINE)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=DEADLINE) as answer:
            return json.load(answer)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"http://{self.address}{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
            return json.load(answer)

    def refusal(self, path: str, body: dict[str, Any]) -> str:
        with pytest.raises(urllib.error.HTTPError) as caught:
            self.post(path, body)
        with caught.value as answer:
            assert answer.code == 400
            return str(json.load(answer)["error"]["message"])


@pytest.fixture(scope="module")
def served(settings: ServerSettings) -> Iterator[Served]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = RolloutServer(settings)
    address = asyncio.run_coroutine_threadsafe(server.start(), loop).result(DEADLINE)
    yield Served(address, server, loop)
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(DEADLINE)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(DEADLINE)
    loop.close()


def test_it_listens_on_this_machine_alone_and_tells_its_version_and_model(served: Served) -> None:
    assert served.address.startswith("127.0.0.1:")
    assert served.get("/health") == {"status": "ok", "weight_version": 0}
    assert [model["id"] for model in served.get("/v1/models")["data"]] == [served.server.settings.model]


def test_completions_return_what_the_token_api_samples(served: Served) -> None:
    expected = served.sampled([10, 11, 12])
    answer = served.post("/v1/completions", {"prompt": [10, 11, 12], "logprobs": 0, **SAMPLING})
    choice = answer["choices"][0]
    assert choice["token_ids"] == expected.token_ids
    assert choice["prompt_token_ids"] == [10, 11, 12]
    np.testing.assert_allclose(choice["logprobs"]["token_logprobs"], expected.log_probs or [], atol=1e-6)
    assert choice["text"] == served.server.renderer.text(expected.token_ids)
    assert answer["usage"]["total_tokens"] == 3 + len(expected.token_ids)


def test_a_prompt_may_be_text(served: Served) -> None:
    prompt = served.server.renderer.tokenizer.encode("guess 7", add_special_tokens=False)
    answer = served.post("/v1/completions", {"prompt": "guess 7", **SAMPLING})
    assert answer["choices"][0]["prompt_token_ids"] == prompt
    assert answer["choices"][0]["token_ids"] == served.sampled(prompt).token_ids


def test_chats_are_rendered_by_the_models_template(served: Served) -> None:
    messages = [{"role": "system", "content": "is"}, {"role": "user", "content": "higher"}]
    prompt = served.server.renderer.prompt(messages).tolist()
    expected = served.sampled(prompt)
    answer = served.post("/v1/chat/completions", {"messages": messages, "logprobs": True, **SAMPLING})
    choice = answer["choices"][0]
    assert answer["prompt_token_ids"] == prompt
    assert choice["token_ids"] == expected.token_ids
    logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    np.testing.assert_allclose(logprobs, expected.log_probs or [], atol=1e-6)
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] in ("stop", "length")


def test_what_is_wrong_or_not_done_here_is_a_400_that_says_so(served: Served) -> None:
    assert "leaves no room" in served.refusal("/v1/completions", {"prompt": [10] * 64})
    assert "stream" in served.refusal("/v1/completions", {"prompt": [10], "stream": True})
    assert "tools" in served.refusal("/v1/chat/completions", {"messages": [], "tools": []})
    assert "body.n" in served.refusal("/v1/completions", {"prompt": [10], "n": 2})
    assert "temperature=-1" in served.refusal("/v1/completions", {"prompt": [10], "temperature": -1})
