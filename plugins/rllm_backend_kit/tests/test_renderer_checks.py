"""What a renderer cannot do for a run is said when the renderer is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from expecting import expect_error
from tool_tokenizer import ToolTokenizer

from rllm_backend_kit.renderers import check_reasoning_is_kept, check_tool_calls, make_renderer
from rllm_core.contracts.backend import RunContext
from rllm_core.contracts.renderer import RendererSetup
from rllm_core.errors import ConfigError
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_core.schema.run_config import RunConfig

STOP = ord("$")


class Channels:
    """Writes each answer into a channel: ``(final)`` before the words, and ``(thought)…)`` around reasoning."""

    chat_template = ""

    def __init__(self, answer: str = "", thought: str = "({})", user: str = "<u>{}") -> None:
        self.answer, self.thought, self.user = answer, thought, user

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **options: Any) -> str:
        return "".join(map(self._turn, conversation)) + "<a>"

    def _turn(self, message: Mapping[str, Any]) -> str:
        if message["role"] != "assistant":
            return self.user.format(message["content"])
        thought = self.thought.format(message["reasoning_content"]) if "reasoning_content" in message else ""
        return f"<a>{thought}{self.answer}{message['content']}$"

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in {"<|channel>": "{", "<channel|>": "}"}.get(text, text)]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(chr(token) for token in token_ids if token != STOP)


class Rewriting(TemplateRenderer):
    def bridge(self, *arguments: Any) -> Any:
        return None


def test_hidden_reasoning_is_rejected_if_it_must_stay() -> None:
    renderer: Any = Rewriting(Channels(thought=""), [STOP])
    with expect_error(ConfigError, "unused-key", "'strict'", "rllm.accumulate_reasoning=false"):
        check_reasoning_is_kept(renderer, "strict")


@pytest.mark.parametrize(("kind", "shows"), [(Rewriting, True), (TemplateRenderer, False), (TemplateRenderer, True)])
def test_reasoning_kept_by_bridge_or_template_is_accepted(kind: type[TemplateRenderer], shows: bool) -> None:
    check_reasoning_is_kept(kind(Channels(thought="({})" * shows), [STOP]), "template")


def _refuse(value: Any) -> str:
    raise ValueError("Conversation roles must alternate")


def test_template_with_tools_calls_and_results_passes() -> None:
    check_tool_calls(TemplateRenderer(ToolTokenizer(), [STOP]), "template")


@pytest.mark.parametrize(
    ("shows", "problem"),
    [
        ({"tools": lambda tools: ""}, "show tools"),
        ({"call": lambda call: f"<call>{call['name']}</call>"}, "arguments"),
        ({"tool": lambda text: ""}, "results of tools"),
        ({"tool": _refuse}, "ValueError: Conversation roles"),
        ({"system": _refuse}, "ValueError: Conversation roles"),
        ({"call": lambda call: f"({call['name']}: {call['arguments']})"}, "read the call"),
        ({"user": lambda text: ""}, "user"),
    ],
)
def test_template_that_drops_parts_of_tools_is_rejected(shows: dict[str, Any], problem: str) -> None:
    with expect_error(ConfigError, "tools-not-supported", "'template'", problem, "rllm.renderer=auto"):
        check_tool_calls(TemplateRenderer(ToolTokenizer(**shows), [STOP]), "template")


def test_a_bridge_that_loses_results_is_refused() -> None:
    class Losing(TemplateRenderer):
        def bridge(self, prompt_ids: Any, response_ids: Any, messages: Any, tools: Any = ()) -> Any:
            return super().bridge(prompt_ids, response_ids, [m for m in messages if m["role"] != "tool"], tools)

    with expect_error(ConfigError, "tools-not-supported", "'auto'", "results of tools") as caught:
        check_tool_calls(Losing(ToolTokenizer(), [STOP]), "auto")
    assert "rllm.renderer=auto" not in caught.value.hint


def test_renderer_without_bridges_is_checked_by_prompts() -> None:
    check_tool_calls(Rewriting(ToolTokenizer(), [STOP]), "rewriting")


@pytest.mark.parametrize("calls_tools", [False, True])
def test_a_run_is_checked_for_what_it_needs(calls_tools: bool) -> None:
    setup = RendererSetup(name="m", tokenizer=ToolTokenizer(tools=lambda tools: ""), stop_ids=frozenset({STOP}))
    run = RunContext(config=RunConfig(), backend_config=None, seed=0, total_steps=1, calls_tools=calls_tools)
    if not calls_tools:
        assert isinstance(make_renderer(run, setup), TemplateRenderer)
        return
    with pytest.raises(ConfigError, match="renderer 'template'"):
        make_renderer(run, setup)


@pytest.mark.parametrize(
    ("tokenizer", "values"),
    [
        (Channels(answer="final"), ["'two'", "'finaltwo'"]),
        (Channels(thought="({})"), ["'simple sum'", "'(simple sum'"]),
        (Channels(user="<u>"), ["user"]),
        (Channels(), ["'simple sum'"]),
        (Channels(thought="{{thought\n{}\n}}"), None),
    ],
)
def test_template_that_cannot_be_read_is_refused(tokenizer: Any, values: list[str] | None) -> None:
    setup = RendererSetup(name="m", tokenizer=tokenizer, stop_ids=frozenset({STOP}))
    run = RunContext(config=RunConfig(), backend_config=None, seed=0, total_steps=1)
    if values is None:
        assert isinstance(make_renderer(run, setup), TemplateRenderer)
        return
    with expect_error(ConfigError, "unsupported-chat-template", "'template'", *values, "rllm.renderer="):
        make_renderer(run, setup)
