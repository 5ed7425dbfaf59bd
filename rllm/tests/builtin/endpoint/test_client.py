"""Requests to a server that behaves and misbehaves, and handles of messages and responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from chat_server import MODEL, Scripted, completion, serving
from expecting import expect_error

from rllm.builtin.endpoint import backend
from rllm.builtin.endpoint.backend import EndpointClient, EndpointEngine, MessageRenderer
from rllm.builtin.endpoint.settings import EndpointSection
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.data.messages import Response, ToolCall
from rllm_core.errors import BackendError, RolloutError, UnsupportedSamplingError
from rllm_core.rollout.conversation import PromptTooLongError

ASKED = [{"role": "user", "content": "1+1"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
Work = Callable[[EndpointEngine], Coroutine[Any, Any, Any]]


def with_engine(server: Scripted, work: Work, **settings: Any) -> Any:
    """What `work` returns, with an engine of a server that runs meanwhile. Retries follow at once."""

    async def run(url: str) -> Any:
        client = EndpointClient(EndpointSection(url=url, **{"backoff": 0.0, **settings}))
        try:
            return await work(EndpointEngine(client, await client.choose_model()))
        finally:
            await client.close()

    with serving(server.app) as url:
        return asyncio.run(run(url))


def ask(server: Scripted, tools: Any = (), sampling: dict[str, Any] | None = None, **settings: Any) -> Any:
    """The completion of one prompt, and its response."""

    async def work(engine: EndpointEngine) -> tuple[Completion, Response]:
        prompt = engine.renderer.prompt(ASKED, tools)
        params = SamplingParams(max_tokens=5, **(sampling or {}))
        sampled = await engine.generate(prompt, params, session="s")
        return sampled, engine.renderer.parse(prompt, sampled.token_ids)

    return with_engine(server, work, **settings)


def test_response_has_counted_length_without_log_probs() -> None:
    sampled, response = ask(Scripted(completion("two", tokens=4, finish_reason="length")))
    assert sampled.token_ids.shape == sampled.logprobs.shape == (4,)
    assert np.isnan(sampled.logprobs).all()
    assert (sampled.finish_reason, response.content, response.finish_reason) == ("length", "two", "length")
    sampled, response = ask(Scripted(completion(None, tokens=0)))
    assert (sampled.token_ids.size, response.content) == (0, "")


def test_a_request_says_how_to_sample() -> None:
    server = Scripted(completion("2"))
    ask(server, sampling={"temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 2**40 + 3})
    expected = {"model": MODEL, "messages": ASKED, "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 7}
    assert server.requests == [{**expected, "seed": 3}]


def test_settings_change_a_request() -> None:
    server = Scripted(completion("2"))
    extra = {"reasoning_effort": "low"}
    ask(server, max_tokens_field="max_completion_tokens", send_seed=False, extra_body=extra)
    expected = {"model": MODEL, "messages": ASKED, "max_completion_tokens": 5, "temperature": 1.0}
    assert server.requests == [{**expected, **extra}]


def test_reasoning_and_tool_calls_are_read() -> None:
    calls = [
        {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "add", "arguments": "[1]"}},
    ]
    server = Scripted(completion(None, reasoning_content="hm", tool_calls=calls, finish_reason="tool_calls"))
    _, response = ask(server, tools=[TOOL])
    assert response.reasoning == "hm"
    assert response.tool_calls == (ToolCall(name="add", arguments={"x": 1}, id="a"),)
    (malformed,) = response.malformed_calls
    assert malformed.text == "add([1])"
    assert "arguments" in malformed.problem
    assert server.requests[0]["tools"] == [TOOL]


@pytest.mark.parametrize("status", [429, 500, 503, 408])
def test_what_passes_is_asked_again(status: int) -> None:
    server = Scripted((status, "busy"), (status, "busy", {"Retry-After": "0"}), completion("2"))
    assert ask(server)[1].content == "2"
    assert len(server.requests) == 3
    with expect_error(BackendError, "service-failed", "503", "endpoint.retries"):
        ask(Scripted((503, "\nthe model is loading\nplease wait")), retries=1)


@pytest.mark.parametrize(("status", "hint"), [(400, "extra_body"), (401, "RLLM_API_KEY"), (404, "ends with /v1")])
def test_a_refusal_is_not_asked_again(status: int, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLLM_API_KEY", "sk-very-secret")
    server = Scripted((status, "bad sk-very-secret"))
    with pytest.raises(BackendError, match=rf"HTTP {status}: bad \*\*\*") as error:
        ask(server)
    assert hint in error.value.hint
    assert "sk-very-secret" not in str(error.value)
    assert len(server.requests) == 1
    with pytest.raises(PromptTooLongError):
        ask(Scripted((400, "This model's maximum context length is 8192 tokens.")))


@pytest.mark.parametrize("answer", [{"choices": []}, {"choices": [{"message": {"content": "2"}}]}, (200, "<html>")])
def test_an_answer_of_another_kind_is_an_error(answer: Any) -> None:
    with pytest.raises(BackendError, match=r"no chat completion|no JSON object"):
        ask(Scripted(answer))


def test_concurrent_requests_are_limited() -> None:
    server = Scripted(completion("2"))

    async def work(engine: EndpointEngine) -> None:
        prompt = engine.renderer.prompt(ASKED)
        sampling = SamplingParams(max_tokens=1)
        await asyncio.gather(*(engine.generate(prompt, sampling, session=str(number)) for number in range(20)))

    with_engine(server, work, max_concurrency=3)
    assert len(server.requests) == 20
    assert server.most_at_once <= 3


@pytest.mark.parametrize(
    ("models", "model", "said"),
    [
        (("one", "two"), None, "has the models one, two"),
        (("large-instruct",), "larg-instruct", "Did you mean 'large-instruct'?"),
        ((), None, "has the models none"),
    ],
)
def test_missing_model_is_an_error_without_requests(models: Any, model: Any, said: str) -> None:
    server = Scripted(completion("2"), models=models)
    with expect_error(BackendError, "model-not-found", said):
        ask(server, model=model)
    assert not server.requests


def test_server_without_model_list_needs_a_name() -> None:
    server = Scripted(completion("2"))
    server.models = (404, "not found")
    with pytest.raises(BackendError, match="HTTP 404"):
        ask(server)
    assert ask(server, model="any")[1].content == "2"


@pytest.mark.parametrize("sampling", [{"json_schema": "{}"}, {"top_logprobs": 1}], ids=str)
def test_schema_and_top_logprobs_are_refused(sampling: dict[str, Any]) -> None:
    server = Scripted(completion("2"))
    with pytest.raises(UnsupportedSamplingError):
        ask(server, sampling=sampling)
    assert server.requests == []


def test_prompt_ids_depend_only_on_its_content() -> None:
    one, other = MessageRenderer(), MessageRenderer()
    other.prompt([{"role": "user", "content": "before"}])
    assert one.prompt(ASKED).tolist() == other.prompt(ASKED).tolist()
    assert one.prompt(ASKED).tolist() != one.prompt(ASKED, [{"type": "function"}]).tolist()
    assert list(one.find_prompt(one.prompt(ASKED)).messages) == ASKED


def test_responses_that_share_a_handle_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_handle", lambda content, numbers: (7,) * numbers)
    renderer = MessageRenderer()
    ids = [renderer.encode_response(Response(text=text, content=text), 2) for text in ("a", "b", "a")]
    assert [renderer.text(each) for each in ids] == ["a", "b", "a"]


def test_old_responses_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "MAX_STORED", 2)
    renderer = MessageRenderer()
    ids = [renderer.response_ids(text) for text in ("a", "b", "c")]
    assert [renderer.text(each) for each in ids] == ["", "b", "c"]


def test_other_ids_and_messages_are_errors() -> None:
    with expect_error(RolloutError, "bad-prompt"):
        MessageRenderer().find_prompt([1, 2, 3])
    with expect_error(RolloutError, "not-json"):
        MessageRenderer().prompt([{"role": "user", "content": object()}])


def test_response_without_counted_tokens_is_kept() -> None:
    renderer = MessageRenderer()
    assert renderer.text(renderer.encode_response(Response(text="42", content="42"), 0)) == "42"
    assert len(renderer.encode_response(Response(text="", content=""), 0)) == 0
