"""openai-python and anthropic-python speak to the gateway as to any server, and each parameter has one class."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest
from gateway_clients import anthropic_client, openai_client, openai_of
from gateway_world import CALL, World, assert_one_class

from rllm_gateway.apis import chat, completions, google, messages, responses, tokens
from rllm_gateway.apis.fields import RefusedError

if TYPE_CHECKING:
    import anthropic
    import openai


HI: Any = [{"role": "user", "content": "hi"}]
FUNCTION = {"name": "look_up", "parameters": {"type": "object", "properties": {"word": {"type": "string"}}}}
TOOLS: Any = [{"type": "function", "function": FUNCTION}]


@pytest.fixture
def client(world: World) -> Iterator[openai.OpenAI]:
    with openai_client(world) as client:
        yield client


def test_a_response(client: openai.OpenAI, world: World) -> None:
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]
    completion = client.chat.completions.create(model="gpt", messages=parts, logprobs=True)
    [choice] = completion.choices
    assert (choice.message.content, choice.finish_reason, choice.message.tool_calls) == ("hello", "stop", None)
    assert completion.model == "gpt"
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (len("<u>hi<a>"), len("hello$"))
    assert world.policy.calls[0].prompt == "<u>hi<a>"
    assert choice.logprobs is not None
    tokens = choice.logprobs.content or []
    assert [token.token for token in tokens] == [*"hello", ""]
    assert [token.logprob for token in tokens] == world.policy.calls[0].completion.logprobs.tolist()


def test_a_response_that_is_streamed(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(model="gpt", messages=HI, stream=True, stream_options=options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "hello"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == len("<u>hi<a>hello$")


def test_streamed_tool_calls_are_stored_token_by_token(client: openai.OpenAI, world: World) -> None:
    said = f"«é» wait{CALL}{CALL}"
    world.policy.response = lambda prompt: said
    with client.chat.completions.stream(model="gpt", messages=HI, tools=TOOLS) as stream:
        [choice] = stream.get_final_completion().choices
    assert (choice.message.content, choice.finish_reason) == ("«é» wait", "tool_calls")
    calls = choice.message.tool_calls or []
    assert [call.function.arguments for call in calls] == ['{"word": "proof"}'] * 2
    [sampled] = world.policy.calls
    [row] = world.store.calls(sampled.session)
    assert row.response_ids.tolist() == sampled.completion.token_ids.tolist() == [*map(ord, said + "$")]
    assert row.logprobs.tolist() == sampled.completion.logprobs.tolist()


def test_a_call_of_a_tool_and_its_result(client: openai.OpenAI, world: World) -> None:
    world.policy.response = lambda prompt: "done" if "<t>" in prompt else CALL
    first = client.chat.completions.create(model="gpt", messages=HI, tools=TOOLS).choices[0]
    assert first.finish_reason == "tool_calls"
    [call] = first.message.tool_calls or []
    said: Any = [*HI, first.message, {"role": "tool", "tool_call_id": call.id, "content": "a proof"}]
    assert client.chat.completions.create(model="gpt", messages=said, tools=TOOLS).choices[0].message.content == "done"
    assert world.policy.calls[1].prompt.endswith(f"<u>hi<a>{CALL}$<t>a proof<a>")


def test_n_responses_are_n_calls(client: openai.OpenAI, world: World) -> None:
    responses = iter(("one", "two"))
    world.policy.response = lambda prompt: next(responses)
    choices = client.chat.completions.create(model="gpt", messages=HI, n=2).choices
    assert [(choice.index, choice.message.content) for choice in choices] == [(0, "one"), (1, "two")]
    assert len({call.call for call in world.policy.calls}) == 2
    assert len({call.branch for call in world.policy.calls}) == 2


def test_stop_text_and_most_tokens_end_a_response(client: openai.OpenAI, world: World) -> None:
    world.policy.response = lambda prompt: "Thought: x\nObservation: y"
    [choice] = client.chat.completions.create(model="gpt", messages=HI, stop=["Observation:"]).choices
    assert (choice.message.content, choice.finish_reason) == ("Thought: x\n", "stop")
    assert bytes(world.policy.calls[0].completion.token_ids.tolist()) == b"Thought: x\nObservation:"
    [choice] = client.chat.completions.create(model="gpt", messages=HI, max_tokens=2).choices
    assert (choice.message.content, choice.finish_reason) == ("Th", "length")


@pytest.mark.parametrize(
    ("param", "change"),
    [
        ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}}),
        ("logit_bias", {"logit_bias": {"5": 1}}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": "required"}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 3}),
        ("reticulate", {"extra_body": {"reticulate": 1}}),
    ],
)
def test_what_nothing_acts_on_is_refused_by_name(client: openai.OpenAI, param: str, change: Any) -> None:
    import openai

    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="gpt", messages=HI, **change)
    assert (caught.value.param, caught.value.code) == (param, "unsupported_parameter")


def test_ignored_and_overruled_parameters_are_counted(world: World) -> None:
    session = world.open(unsupported="ignore", max_tokens=3)
    changed: Any = {"temperature": 0.1, "reasoning_effort": "low", "max_completion_tokens": 100}
    with openai_of(session) as client:
        client.chat.completions.create(model="gpt", messages=HI, tools=TOOLS, tool_choice="required", **changed)
        client.chat.completions.create(model="gpt", messages=HI, temperature=1)
    assert world.policy.calls[0].max_tokens == 3
    assert world.close(session).counters == {
        "overruled/model": 2,
        "overruled/temperature": 1,
        "ignored/reasoning_effort": 1,
        "ignored/tool_choice": 1,
    }


@pytest.mark.parametrize(
    ("name", "refused", "overruled", "off"),
    [
        ("temperature", (-1, 2.5, "1", True), 1.0, None),
        ("top_p", (-0.1, 1.1), 1, None),
        ("top_k", (-2,), -1, None),
        ("seed", ("x",), -5, None),
        ("presence_penalty", (-2.5, 3), 1, 0),
        ("frequencyPenalty", (-2.5, 3), -2, 0.0),
        ("repetition_penalty", (-1,), 1.1, 1),
        ("typical_p", (2,), 0.5, 1),
        ("min_p", (-1,), 0.1, 0),
        ("min_tokens", (-1,), 3, 0),
    ],
)
def test_sampling_values_are_overruled_or_refused(name: str, refused: Any, overruled: float, off: float | None) -> None:
    for value in refused:
        with pytest.raises(RefusedError, match=f"{name} is {value!r}; it must be a number") as caught:
            chat.RULES.outcomes({name: value}, "ignore")
        assert (caught.value.status, caught.value.param) == (400, name)
    assert chat.RULES.outcomes({name: overruled}, "refuse") == {name: "overruled"}
    assert off is None or chat.RULES.outcomes({name: off}, "refuse") == {name: "honored"}


def test_too_long_requests_fail_as_with_openai(world: World) -> None:
    import openai

    with openai_client(world, max_calls=1) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "x" * 6000}])
        assert caught.value.code == "context_length_exceeded"
        client.chat.completions.create(model="gpt", messages=HI)
        with pytest.raises(openai.PermissionDeniedError):
            client.chat.completions.create(model="gpt", messages=HI)


PARAMETERS = {"type": "object", "properties": {"word": {"type": "string"}}}
RESPONSES_TOOLS: Any = [{"type": "function", "name": "look_up", "parameters": PARAMETERS, "strict": True}]


def test_a_response_of_the_responses_api(client: openai.OpenAI, world: World) -> None:
    logprobs: Any = ["message.output_text.logprobs"]
    response = client.responses.create(model="gpt", instructions="be kind", input="hi", include=logprobs)
    assert (response.output_text, response.status) == ("hello", "completed")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (len("<s>be kind<u>hi<a>"), len("hello$"))
    assert world.policy.calls[0].prompt == "<s>be kind<u>hi<a>"
    [message] = response.output
    assert message.type == "message"
    [part] = message.content
    assert part.type == "output_text"
    assert [token.token for token in part.logprobs or []] == [*"hello", ""]


def test_streamed_calls_of_the_responses_api_are_stored(client: openai.OpenAI, world: World) -> None:
    world.policy.response = lambda prompt: f"wait{CALL}{CALL}"
    with client.responses.stream(model="gpt", input="hi", tools=RESPONSES_TOOLS) as stream:
        kinds = [event.type for event in stream]
        response = stream.get_final_response()
    assert response.output_text == "wait"
    assert [item.type for item in response.output] == ["message", "function_call", "function_call"]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert {"response.output_text.delta", "response.function_call_arguments.done"} < {*kinds}
    [sampled] = world.policy.calls
    [row] = world.store.calls(sampled.session)
    assert row.response_ids.tolist() == sampled.completion.token_ids.tolist() == [*map(ord, f"wait{CALL}{CALL}$")]


def test_a_result_continues_in_the_responses_api(client: openai.OpenAI, world: World) -> None:
    world.policy.response = lambda prompt: "done" if "<t>" in prompt else f"wait{CALL}"
    said: Any = [{"role": "user", "content": "hi"}]
    first = client.responses.create(model="gpt", input=said, tools=RESPONSES_TOOLS)
    call = first.output[1]
    assert call.type == "function_call"
    said += [item.model_dump(exclude_none=True) for item in first.output]
    said.append({"type": "function_call_output", "call_id": call.call_id, "output": "a proof"})
    assert client.responses.create(model="gpt", input=said, tools=RESPONSES_TOOLS).output_text == "done"
    assert world.policy.calls[1].prompt.endswith(f"<u>hi<a>wait{CALL}$<t>a proof<a>")


def test_a_response_that_is_cut_off(client: openai.OpenAI) -> None:
    response = client.responses.create(model="gpt", input="hi", max_output_tokens=2)
    assert (response.status, response.output_text) == ("incomplete", "he")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize(
    ("unsupported", "param", "change"),
    [
        ("refuse", "background", {"background": True}),
        ("refuse", "text.format", {"text": {"format": {"type": "json_object"}}}),
        ("refuse", "text.format.type", {"text": {"format": {"type": "grammar"}}}),
        ("refuse", "tools[0].type", {"tools": [{"type": "web_search"}]}),
        # No session keeps a conversation.
        ("ignore", "previous_response_id", {"previous_response_id": "resp_1"}),
        ("refuse", "conversation", {"conversation": "conv_1"}),
        ("ignore", "conversation", {"conversation": "conv_1"}),
        ("ignore", "prompt", {"prompt": {"id": "pmpt_1"}}),
        ("ignore", "input[0].type", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
    ],
)
def test_unused_fields_of_responses_are_refused(world: World, unsupported: str, param: str, change: Any) -> None:
    import openai

    with openai_client(world, unsupported=unsupported) as client, pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**{"model": "gpt", "input": "hi", **change})
    assert caught.value.param == param
    assert caught.value.code == "unsupported_parameter" or unsupported == "refuse"
    assert not world.policy.calls


CLAUDE_TOOLS: Any = [
    {"name": "look_up", "input_schema": {"type": "object", "properties": {"word": {"type": "string"}}}},
]
MODEL = "claude"


@pytest.fixture
def claude(world: World) -> Iterator[anthropic.Anthropic]:
    with anthropic_client(world) as claude:
        yield claude


def test_a_message_of_anthropic(claude: anthropic.Anthropic, world: World) -> None:
    message = claude.messages.create(model=MODEL, max_tokens=100, messages=HI, system="be kind")
    assert [block.model_dump(exclude_none=True) for block in message.content] == [{"type": "text", "text": "hello"}]
    assert message.stop_reason == "end_turn"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (len("<s>be kind<u>hi<a>"), len("hello$"))
    assert world.policy.calls[0].prompt == "<s>be kind<u>hi<a>"


def test_streamed_calls_of_anthropic_are_stored(claude: anthropic.Anthropic, world: World) -> None:
    said = f"wait{CALL}{CALL}"
    world.policy.response = lambda prompt: said
    with claude.messages.stream(model=MODEL, max_tokens=400, messages=HI, tools=CLAUDE_TOOLS) as stream:
        message = stream.get_final_message()
    text, *calls = message.content
    assert text.type == "text"
    assert text.text == "wait"
    assert [(call.name, call.input) for call in calls if call.type == "tool_use"] == [
        ("look_up", {"word": "proof"})
    ] * 2
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens == len(f"{said}$")
    [sampled] = world.policy.calls
    [row] = world.store.calls(sampled.session)
    assert row.response_ids.tolist() == sampled.completion.token_ids.tolist() == [*map(ord, f"{said}$")]


def test_a_result_continues_in_the_messages_api(claude: anthropic.Anthropic, world: World) -> None:
    world.policy.response = lambda prompt: "done" if "<t>" in prompt else CALL
    first = claude.messages.create(model=MODEL, max_tokens=100, messages=HI, tools=CLAUDE_TOOLS)
    [call] = first.content
    assert call.type == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "a proof"}]}
    said: Any = [*HI, first.to_param(), {"role": "user", "content": [result]}]
    second = claude.messages.create(model=MODEL, max_tokens=100, messages=said, tools=CLAUDE_TOOLS)
    assert second.content[0].type == "text"
    assert world.policy.calls[1].prompt.endswith(f"<u>hi<a>{CALL}$<t>a proof<a>")
    assert second.usage.cache_read_input_tokens == len(world.policy.calls[0].prompt) + len(f"{CALL}$")


def test_limits_and_lengths(claude: anthropic.Anthropic, world: World) -> None:
    world.policy.response = lambda prompt: "one END two"
    message = claude.messages.create(model=MODEL, max_tokens=100, messages=HI, stop_sequences=["END"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")
    assert message.content[0].model_dump()["text"] == "one "
    assert claude.messages.create(model=MODEL, max_tokens=2, messages=HI).stop_reason == "max_tokens"
    assert claude.messages.count_tokens(model=MODEL, messages=HI).input_tokens == len("<u>hi<a>")


def test_refusals_have_the_form_of_anthropic(claude: anthropic.Anthropic, world: World) -> None:
    import anthropic

    body: Any
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.messages.create(model=MODEL, max_tokens=9, messages=HI, tools=CLAUDE_TOOLS, tool_choice={"type": "any"})
    body = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.beta.messages.create(model=MODEL, max_tokens=9, messages=HI, thread={"type": "create"})
    body = caught.value.body
    assert body["error"]["details"] == {"error_code": "thread_unsupported_request"}
    with pytest.raises(anthropic.AuthenticationError):
        claude.with_options(api_key="wrong").messages.create(model=MODEL, max_tokens=9, messages=HI)


@pytest.mark.parametrize("unsupported", ["refuse", "ignore"])
def test_client_side_tools_see_the_whole_conversation(unsupported: str, world: World) -> None:
    """The claude requests a stored conversation, and sends all messages if the server has none."""
    import anthropic

    @anthropic.beta_tool
    def look_up(word: str) -> str:
        """Look up a word."""
        return f"a {word}"

    world.policy.response = lambda prompt: "done" if "<t>" in prompt else CALL
    with anthropic_client(world, unsupported=unsupported) as claude:
        runner = claude.beta.messages.tool_runner(model=MODEL, max_tokens=100, messages=HI, tools=[look_up])
        [block] = runner.until_done().content
    assert block.model_dump()["text"] == "done"
    first, second = world.policy.calls
    assert second.prompt == f"{first.prompt}{CALL}$<t>a proof<a>"


def test_each_parameter_of_clients_has_one_class() -> None:
    from anthropic.types.message_create_params import MessageCreateParamsBase
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
    from openai.types.completion_create_params import CompletionCreateParamsBase
    from openai.types.responses.response_create_params import ResponseCreateParamsBase

    assert_one_class(MessageCreateParamsBase.__annotations__, messages.RULES)
    assert_one_class(CompletionCreateParamsNonStreaming.__annotations__, chat.RULES)
    plain = CompletionCreateParamsBase.__annotations__
    assert_one_class((*plain, "stream", "add_special_tokens"), completions.RULES)
    assert_one_class((*ResponseCreateParamsBase.__annotations__, "stream"), responses.RULES)


def test_each_documented_parameter_has_one_class() -> None:
    for known, rules in (
        ("contents systemInstruction tools safetySettings cachedContent labels", google.RULES),
        ("temperature topK seed thinkingConfig speechConfig logprobs", google.CONFIG_RULES),
        ("token_ids sampling_params model stream features cache_salt", tokens.RULES),
        ("max_tokens temperature top_p logprobs ignore_eos", tokens.PARAMETER_RULES),
    ):
        assert_one_class(known.split(), rules)


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
