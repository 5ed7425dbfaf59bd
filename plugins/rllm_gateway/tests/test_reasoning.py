"""Thoughts of a model: clients may leave them out, and the session decides whether later prompts show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gateway_clients import anthropic_of, openai_of
from gateway_world import World, running
from tool_tokenizer import STOP

from rllm_core.rollout.template_renderer import TemplateRenderer

HI: Any = {"role": "user", "content": "hi"}
AND: Any = {"role": "user", "content": "and"}
MARKS = {"<think>": "{", "</think>": "}"}


class Thinking:
    """One token per character; ``{`` and ``}`` enclose the reasoning, which the template does not show."""

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **options: Any) -> str:
        ends = {"assistant": "$"}
        said = [f"<{m['role'][0]}>{m['content']}{ends.get(m['role'], '')}" for m in conversation]
        return "".join(said) + "<a>"

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in MARKS.get(text, text)]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(chr(token) for token in token_ids if token != STOP)


class Anew(TemplateRenderer):
    """A model whose template rewrites what came before."""

    def bridge(self, *arguments: Any) -> Any:
        return None


@contextmanager
def thinking(directory: Path, kind: type[TemplateRenderer] = TemplateRenderer) -> Iterator[World]:
    with running(directory, attached=lambda: kind(Thinking(), [STOP])) as world:
        responses = iter(("{hm}one", "{so}two", "{well}three"))
        world.policy.response = lambda prompt: next(responses)
        yield world


def talk(world: World, *, echo: bool, **changes: Any) -> list[str]:
    """Return the prompts of two turns. With `echo` the client repeats the reasoning."""
    session = world.open(**changes)
    with openai_of(session) as client:
        first = client.chat.completions.create(model="m", messages=[HI]).choices[0].message.model_dump()
        assert (first["content"], first["reasoning_content"]) == ("one", "hm")
        said = first if echo else {"role": "assistant", "content": first["content"]}
        client.chat.completions.create(model="m", messages=[HI, said, AND])
    calls = world.close(session).calls
    assert [call.parent for call in calls] == [None, calls[0].id]
    return [call.prompt for call in world.policy.calls]


@pytest.mark.parametrize("echo", [True, False])
@pytest.mark.parametrize(("kept", "later"), [(False, "<u>hi<a>one$<u>and<a>"), (True, "<u>hi<a>{hm}one$<u>and<a>")])
def test_reasoning_before_a_user_message_stays_on_request(tmp_path: Path, echo: bool, kept: bool, later: str) -> None:
    with thinking(tmp_path) as world:
        assert talk(world, echo=echo, id="s:0", accumulate_reasoning=kept) == ["<u>hi<a>", later]
        stored = world.store.session("s:0")
        prompts = [stored.prompt_ids(row.id).tolist() for row in stored.calls]
        assert prompts == [call.prompt_ids.tolist() for call in world.policy.calls]


def test_rewritten_prompts_are_rendered_from_scratch(tmp_path: Path) -> None:
    with thinking(tmp_path, Anew) as world:
        assert talk(world, echo=False) == ["<u>hi<a>", "<u>hi<a>one$<u>and<a>"]


def test_reasoning_stays_during_tool_calls(tmp_path: Path) -> None:
    with thinking(tmp_path) as world:
        session = world.open()
        with openai_of(session) as client:
            first = client.chat.completions.create(model="m", messages=[HI]).choices[0].message
            result: Any = {"role": "tool", "tool_call_id": "c", "content": "x"}
            second = client.chat.completions.create(model="m", messages=[HI, first, result]).choices[0].message
            said: list[Any] = [HI, first, result, second, AND]
            client.chat.completions.create(model="m", messages=said)
        prompts = [call.prompt for call in world.policy.calls]
        assert prompts[1:] == ["<u>hi<a>{hm}one$<t>x<a>", "<u>hi<a>one$<t>x<a>two$<u>and<a>"]


def test_anthropic_client_gets_reasoning_as_blocks(tmp_path: Path) -> None:
    with thinking(tmp_path) as world:
        session = world.open(accumulate_reasoning=True)
        with anthropic_of(session) as client:
            first = client.messages.create(model="m", max_tokens=100, messages=[HI])
            assert [block.type for block in first.content] == ["thinking", "text"]
            client.messages.create(model="m", max_tokens=100, messages=[HI, first.to_param(), AND])
        assert world.policy.calls[1].prompt == "<u>hi<a>{hm}one$<u>and<a>"


def test_responses_api_gets_reasoning_as_items(tmp_path: Path) -> None:
    with thinking(tmp_path) as world:
        session = world.open(accumulate_reasoning=True)
        with openai_of(session) as client:
            with client.responses.stream(model="m", input=[HI]) as stream:
                first = stream.until_done().get_final_response()
            assert [item.type for item in first.output] == ["reasoning", "message"]
            assert first.usage is not None
            assert first.usage.output_tokens_details.reasoning_tokens == len("{hm}")
            said: Any = [HI, *(item.model_dump(exclude_none=True) for item in first.output), AND]
            client.responses.create(model="m", input=said)
        assert world.policy.calls[1].prompt == "<u>hi<a>{hm}one$<u>and<a>"
