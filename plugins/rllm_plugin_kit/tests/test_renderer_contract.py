"""Renderers that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rllm_core.contracts import NoParams, RendererPlugin, RendererSetup
from rllm_core.data.messages import Response
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_plugin_kit import RendererContract

from .conftest import vary


class Good(TemplateRenderer):
    """By the template of the model."""

    @classmethod
    def make(cls, setup: RendererSetup, params: NoParams) -> Good:
        return cls(setup.tokenizer, setup.stop_ids, setup.template_options)


class BridgesOneByOne(Good):
    def bridge(self, prompt_ids: Any, response_ids: Any, messages: Any, tools: Any = ()) -> Any:
        bridged = super().bridge(prompt_ids, response_ids, messages, tools)
        return np.array([*bridged, min(self.stop_ids)], np.int32)


def bridging(bridge: Callable[[Good, Any], Any]) -> type[Good]:
    """Return a renderer that changes the response before it continues the conversation."""

    def run(self: Good, prompt_ids: Any, response_ids: Any, messages: Any, tools: Any = ()) -> Any:
        return Good.bridge(self, prompt_ids, bridge(self, response_ids), messages, tools)

    return vary(Good, bridge=run)


def parsing(change: Callable[[Response], Any]) -> type[Good]:
    """Return a renderer that changes the parsed response."""
    return vary(Good, parse=lambda self, prompt, said, tools=(): change(Good.parse(self, prompt, said)))


NeverBridges = vary(Good, bridge=lambda *_: None)


class NoStopInResponses(Good):
    def response_ids(self, text: str) -> Any:
        ids = super().response_ids(text)
        return ids[:-1] if len(ids) > 1 else ids


class RaisesOnJunk(Good):
    def parse(self, prompt_ids: Any, response_ids: Any, tools: Any = ()) -> Response:
        assert response_ids[-1] in self.stop_ids
        return super().parse(prompt_ids, response_ids)


class Counts(Good):
    asked = 0

    def prompt(self, messages: Any, tools: Any = ()) -> Any:
        Counts.asked += 1
        return super().prompt([*messages, {"role": "user", "content": "x" * Counts.asked}], tools)


class GivesItsCache(Good):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.known: dict[str, Any] = {}

    def prompt(self, messages: Any, tools: Any = ()) -> Any:
        return self.known.setdefault(repr((messages, tools)), super().prompt(messages, tools).copy())


class StripsMessages(Good):
    def prompt(self, messages: Any, tools: Any = ()) -> Any:
        for message in messages:
            message["content"] = message["content"].upper()
        return super().prompt(messages, tools)


class SetsAVariable(Good):
    def parse(self, prompt_ids: Any, response_ids: Any, tools: Any = ()) -> Response:
        os.environ["MY_RENDERER"] = "parsed"
        return super().parse(prompt_ids, response_ids)


def plugin(make: Any) -> RendererPlugin[Any]:
    return RendererPlugin(name="mine", summary="For tests.", params=NoParams, load=lambda: make)


@pytest.mark.parametrize("renderer", [Good, NeverBridges])
def test_a_good_renderer_has_no_complaints(renderer: type[Good], complaints: Any) -> None:
    assert complaints(RendererContract, plugin(renderer.make)) == {}


@pytest.mark.parametrize(
    ("renderer", "test", "said"),
    [
        (vary(Good, stop_ids=property(lambda self: frozenset(), lambda *_: None)), "stop_tokens_exist", "has the stop"),
        (vary(Good, prompt=lambda self, *given: Good.prompt(self, *given).tolist()), "tokens_are_int32", "from prompt"),
        (bridging(lambda self, said: self.response_ids(self.text(said))), "bridge_keeps_every_token", "does not begin"),
        (
            bridging(lambda self, said: [*said, min(self.stop_ids)]),
            "bridge_matches_the_whole_conversation",
            "continues after",
        ),
        (BridgesOneByOne, "bridge_matches_the_whole_conversation", "continues after"),
        (NoStopInResponses, "response_text_survives_a_round_trip", "does not end"),
        (
            vary(Good, text=lambda self, ids: Good.text(self, ids) + "<end>"),
            "response_text_survives_a_round_trip",
            "'7<end>'",
        ),
        (parsing(lambda response: response.text), "any_tokens_can_be_parsed", "as '7'"),
        (RaisesOnJunk, "any_tokens_can_be_parsed", "AssertionError"),
        (
            parsing(lambda response: replace(response, text=response.text[:3])),
            "any_tokens_can_be_parsed",
            "returns the text",
        ),
        (Counts, "results_depend_only_on_the_arguments", "renders the same"),
        (GivesItsCache, "results_depend_only_on_the_arguments", "gives out tokens"),
        (StripsMessages, "it_does_not_change_messages", "changes the messages"),
        (
            vary(Good, prompt=lambda self, messages, tools=(): Good.prompt(self, messages)),
            "tools_are_rendered_or_rejected",
            "drops tools from",
        ),
        (SetsAVariable, "process_wide_state_is_unchanged", "leaves environment variables"),
        (lambda setup, params: 1 / 0, "stop_tokens_exist", "ZeroDivisionError"),
    ],
)
def test_contract_reports_the_mistake(renderer: Any, test: str, said: str, complaint: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("MY_RENDERER", "before")
    make = getattr(renderer, "make", renderer)
    own = tuple(tuple(dict(message) for message in each) for each in RendererContract.conversations)
    assert said in complaint(RendererContract, plugin(make), test, conversations=own)
