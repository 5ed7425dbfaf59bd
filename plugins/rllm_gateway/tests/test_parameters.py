"""Each parameter of a request is used, overruled, ignored, refused or stored."""

from __future__ import annotations

from gateway_world import assert_one_class

from rllm_gateway.apis import chat, completions, google, messages, responses, tokens


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
