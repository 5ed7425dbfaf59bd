"""OpenAI's older completions API: text or token ids in, text out, without a chat template."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_clients import openai_client, openai_of
from gateway_world import World, running
from text_tokenizers import END_THINK, renderer_of_bytes
from tool_tokenizer import STOP, ToolTokenizer

from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_gateway.sampling.rendering import LARGE

MOST = 16
"""OpenAI's default of max_tokens."""


@pytest.mark.parametrize("prompt", ["ab", ["ab"], [97, 98], [[97, 98]]], ids=str)
def test_row_has_the_prompt_and_sampled_tokens(world: World, prompt: Any) -> None:
    with openai_client(world) as client:
        done = client.completions.create(model="gpt", prompt=prompt, logprobs=0, temperature=0.5)
    [choice] = done.choices
    assert (choice.text, choice.finish_reason) == ("hello", "stop")
    assert choice.logprobs is not None
    assert choice.logprobs.text_offset == [0, 1, 2, 3, 4, 5]
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (2, 6)
    [sampled] = world.policy.calls
    assert sampled.max_tokens == MOST
    stored = world.store.session(sampled.session)
    [row] = stored.calls
    assert stored.prompt_ids(row.id).tolist() == [97, 98]
    assert row.response_ids.tolist() == [*map(ord, "hello"), STOP]
    assert choice.logprobs.token_logprobs == row.logprobs.tolist()
    assert [each["content"] for each in row.messages] == ["ab"]
    assert row.outcomes["temperature"] == "overruled"


def test_a_prompt_that_repeats_tokens_continues_their_row(world: World) -> None:
    world.policy.response = lambda prompt: "Action: look STOP"
    session = world.open()
    with openai_of(session) as client:
        text = "Question"
        for _ in range(3):
            text += client.completions.create(model="gpt", prompt=text, stop="STOP", max_tokens=50).choices[0].text
            text += "STOP and more"
    trace = world.close(session)
    assert [call.parent for call in trace.calls] == [None, *(call.id for call in trace.calls[:2])]
    first, second, third = (call.prompt for call in world.policy.calls)
    assert second == f"{first}Action: look STOP and more"
    assert third == f"{second}Action: look STOP and more"


def test_a_streamed_completion_is_cut_into_pieces(world: World) -> None:
    world.policy.held_back = 2
    world.policy.may_end.set()
    session = world.open()
    # The client's strict types have no null for `finish_reason`, which OpenAI sends before the end.
    with openai_of(session) as client:
        stream = client.completions.create(
            model="gpt", prompt="ab", n=2, stop="lo", stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
    texts = [[choice.text for chunk in chunks for choice in chunk.choices if choice.index == at] for at in (0, 1)]
    assert ["".join(each) for each in texts] == ["hel", "hel"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2 * len("hello")
    assert len(world.policy.calls) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_stays_in_the_text(stream: bool, tmp_path: Any) -> None:
    with running(tmp_path, attached=lambda: renderer_of_bytes(thinks=True)) as thinking:
        thinking.policy.response = lambda prompt: f"why{chr(END_THINK)} so"
        with openai_client(thinking) as client:
            done = client.completions.create(model="gpt", prompt="ab", stream=stream)
            chunks: Any = list(done) if stream else [done]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "why</think> so"


def test_large_text_is_encoded_with_likeliest_token_names(world: World) -> None:
    world.policy.options = frozenset(("top_logprobs",))
    world.policy.max_context = LARGE * 2
    with openai_client(world) as client:
        [choice] = client.completions.create(model="gpt", prompt="a" * (LARGE + 1), logprobs=1).choices
    assert world.policy.calls[0].prompt == "a" * (LARGE + 1)
    assert choice.logprobs is not None
    assert (choice.logprobs.top_logprobs or [])[0] == {"h": -2.0}


class Beginning(ToolTokenizer):
    """``^`` begins each text."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord("^")] * add_special_tokens + super().encode(text, add_special_tokens=False)


def test_the_tokenizer_adds_its_special_tokens_to_text(tmp_path: Any) -> None:
    with running(tmp_path, attached=lambda: TemplateRenderer(Beginning(), [STOP])) as world:
        with openai_client(world) as client:
            client.completions.create(model="gpt", prompt="ab")
            client.completions.create(model="gpt", prompt="ab", extra_body={"add_special_tokens": False})
            client.completions.create(model="gpt", prompt=[97])
        assert [call.prompt for call in world.policy.calls] == ["^ab", "ab", "a"]


class WithoutText:
    """A renderer that encodes no plain text."""

    stop_ids = frozenset((STOP,))
    reasoning_ids = None

    def __init__(self) -> None:
        whole = TemplateRenderer(ToolTokenizer(), [STOP])
        self.prompt, self.bridge, self.response_ids = whole.prompt, whole.bridge, whole.response_ids
        self.text, self.token_texts, self.parse = whole.text, whole.token_texts, whole.parse


def test_renderers_without_plain_text_take_token_ids(tmp_path: Any) -> None:
    import openai

    with running(tmp_path, attached=WithoutText) as world, openai_client(world) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="gpt", prompt="ab")
        assert (caught.value.code, caught.value.param) == ("plain_text_unsupported", "prompt")
        assert client.completions.create(model="gpt", prompt=[97, 98]).choices[0].text == "hello"


@pytest.mark.parametrize(
    ("param", "change"),
    [
        ("echo", {"echo": True}),
        ("best_of", {"best_of": 2}),
        ("suffix", {"suffix": "x"}),
        ("logit_bias", {"logit_bias": {"1": 1}}),
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": ""}),
        ("prompt", {"prompt": ["a", "b"]}),
        ("prompt", {"prompt": [[1], [2]]}),
        ("prompt", {"prompt": [1, -1]}),
        ("prompt", {"prompt": "a" * 30_000}),
        ("max_tokens", {"max_tokens": 0}),
        ("add_special_tokens", {"extra_body": {"add_special_tokens": 1}}),
    ],
)
def test_bad_fields_are_refused(world: World, param: str, change: Any) -> None:
    import openai

    with openai_client(world, max_prompt_length=400) as client, pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**({"model": "gpt", "prompt": "ab"} | change))
    assert caught.value.param == param
    assert not world.policy.calls
