"""`LibraryRenderer`: a renderer of the library `renderers` with the interface of rllm's contract."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from renderers import ParsedResponse, ParsedToolCall, Renderer as Library, ToolCallParseStatus

from rllm_core.contracts.renderer import RendererSetup
from rllm_core.data.messages import MalformedToolCall, Message, Response, Tool, ToolCall
from rllm_core.errors import RolloutError, failures_as
from rllm_core.rollout.options import ControlTokensInText
from rllm_core.rollout.template_renderer import (
    END_THINK,
    HISTORY,
    RESPONSE,
    THINK,
    TemplateRenderer,
    in_reasoning,
    plain_message,
    token_texts,
)

TokenIds = Sequence[int] | NDArray[np.int32]
Rendered = NDArray[np.int32]
PROBLEMS = {
    ToolCallParseStatus.INVALID_JSON: "its arguments are no JSON object",
    ToolCallParseStatus.UNCLOSED_BLOCK: "it has no end",
    ToolCallParseStatus.MISSING_NAME: "it names no tool",
    ToolCallParseStatus.MALFORMED_STRUCTURE: "it does not have the form of a call",
    ToolCallParseStatus.UNKNOWN_TOOL: "there is no such tool",
}


class LibraryRenderer:
    """Renderer of a model family in the library. Its results depend only on the arguments.

    The library follows the model's template when it removes reasoning from later prompts. Reasoning of a turn with
    tools is kept until the next user message, as in the models' training.
    """

    reasoning_ids = None
    """None, because this renderer does not cut reasoning from prompts. `bridge` returns None if the template does."""

    def __init__(
        self,
        library: Library,
        setup: RendererSetup,
        control_tokens: ControlTokensInText = "keep",
        *,
        prompts_of_template: bool = False,
    ) -> None:
        """Create the renderer of a model.

        Args:
            library: the library's renderer.
            setup: the model.
            control_tokens: see `RendererParams.control_tokens`.
            prompts_of_template: True if the model's chat template writes the prompts. The library then only reads
                responses and continues prompts.
        """
        self._library = library
        self.tokenizer = setup.tokenizer
        ends = library.get_stop_token_ids()
        self.stop_ids = frozenset(ends) | setup.stop_ids
        own = getattr(setup.tokenizer, "eos_token_id", None)
        self._end = own if own in ends else ends[0]
        self._template = TemplateRenderer(setup.tokenizer, self.stop_ids, setup.template_options, control_tokens)
        self.control_tokens = self._template.control_tokens
        self._rendered_prompt = lru_cache(maxsize=1024)(self._rendered)
        self._prompt = self._template.prompt if prompts_of_template else self._prompt_of_library

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Rendered:
        """Return the (n,) int32 tokens of the prompt for a conversation, up to the start of the model's response."""
        return self._prompt(messages, tools)

    def _prompt_of_library(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Rendered:
        with failures_as(RolloutError, "Rendering messages", "Set rllm.renderer to a different renderer."):
            return self._rendered_prompt(json.dumps([*messages], default=dict), json.dumps([*tools], default=dict))

    def bridge(
        self, prompt_ids: TokenIds, response_ids: TokenIds, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> Rendered | None:
        """Return the (n,) int32 tokens of the next prompt. None if the template changes earlier parts of the prompt.

        Most templates drop earlier reasoning after a user message. If the model did not reason, they change nothing,
        and this method returns tokens.
        """
        with failures_as(RolloutError, "Rendering messages", "Set rllm.renderer to a different renderer."):
            bridged = self._library.bridge_to_next_turn(
                _plain_ids(prompt_ids),
                _plain_ids(response_ids),
                _plain(self.control_tokens.read(messages, after_response=True)),
                tools=_convert_tools(tools),
            )
        rewrites = self._drops_reasoning and any(message["role"] == "user" for message in messages)
        if bridged is not None and not rewrites:
            tokens, sampled = np.array(bridged.token_ids, np.int32), len(prompt_ids) + len(response_ids)
            return np.concatenate((tokens[:sampled], self.control_tokens.remove_breaks(tokens[sampled:])))
        if not self._stays(prompt_ids, response_ids):
            return None
        return self._template.bridge(prompt_ids, response_ids, messages, tools)

    def response_ids(self, text: str) -> Rendered:
        """Return the (n,) int32 tokens of a response that is available only as text, with the stop token."""
        tokens = self._template.response_ids(text)
        is_ended = np.isin(tokens[-1:], [*self.stop_ids]).any()
        return tokens if is_ended else np.array([*tokens, self._end], np.int32)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Rendered:
        """Return the (n,) int32 tokens of a text. See `PlainTextRenderer`."""
        return self._template.encode(text, add_special_tokens=add_special_tokens)

    def text(self, token_ids: TokenIds) -> str:
        """Return the text of a response, without special tokens."""
        return str(self.tokenizer.decode(_plain_ids(token_ids), skip_special_tokens=True))

    def token_texts(self, token_ids: TokenIds) -> list[str]:
        """Return the text of each token, special tokens included."""
        return token_texts(self.tokenizer, token_ids)

    def parse(self, prompt_ids: TokenIds, response_ids: TokenIds, tools: Sequence[Tool] = ()) -> Response:
        """Parse a sampled response with the library."""
        text = self.text(response_ids)
        try:
            parsed = self._library.parse_response(
                _plain_ids(response_ids), tools=_convert_tools(tools), prompt_ids=_plain_ids(prompt_ids)
            )
        except Exception as error:  # noqa: BLE001  (a response may contain any tokens, and must not stop the run)
            problem = f"the response cannot be read: {type(error).__name__}: {error}"
            return Response(text=text, content=text, malformed_calls=(MalformedToolCall(text=text, problem=problem),))
        if self._thinks(prompt_ids, response_ids):
            parsed.content = parsed.content.strip()
        elif parsed.reasoning_complete is False:
            return self._template.parse(prompt_ids, response_ids)  # The library treats such an answer as reasoning.
        if parsed.reasoning_content is not None:
            parsed.reasoning_content = parsed.reasoning_content.strip()
        if not tools and parsed.tool_calls:
            return Response(
                text=text, content=self._with_calls(response_ids, parsed), reasoning=parsed.reasoning_content
            )
        calls = [_call(each, number) for number, each in enumerate(parsed.tool_calls)]
        return Response(
            text=text,
            content=parsed.content,
            reasoning=parsed.reasoning_content,
            tool_calls=tuple(call for call in calls if isinstance(call, ToolCall)),
            malformed_calls=tuple(call for call in calls if isinstance(call, MalformedToolCall)),
        )

    def _thinks(self, prompt_ids: TokenIds, response_ids: TokenIds) -> bool:
        """True if a response contains reasoning, or may contain it."""
        marks = self._template.reasoning_ids
        return marks is None or bool(np.isin(response_ids, marks).any()) or in_reasoning(prompt_ids, marks)

    @cached_property
    def _drops_reasoning(self) -> bool:
        """True if prompts do not show the reasoning of responses before the last user message."""
        one, other = ([*HISTORY[:1], {**HISTORY[1], "reasoning_content": text}, HISTORY[0]] for text in ("one", "two"))
        return bool(self.prompt(one).tolist() == self.prompt(other).tolist())

    def _stays(self, prompt_ids: TokenIds, response_ids: TokenIds) -> bool:
        """True if the template changes no earlier part of the prompt, because the model did not reason."""
        marks, prompt = self._template.reasoning_ids, np.asarray(prompt_ids, np.int32)
        if marks is None or (self._thinks(prompt_ids, response_ids) and not self._shows_empty_reasoning(response_ids)):
            return False
        opened, closed = np.flatnonzero(prompt == marks[0]), np.flatnonzero(prompt == marks[1])
        if len(opened) != len(closed):
            return False
        return all(not self.text(prompt[start:end]).strip() for start, end in zip(opened + 1, closed, strict=True))

    def _shows_empty_reasoning(self, response_ids: TokenIds) -> bool:
        """True if a response begins with empty reasoning, which the template also writes before earlier responses."""
        text = str(self.tokenizer.decode(_plain_ids(response_ids), skip_special_tokens=False))
        begun = self._empty_reasoning
        return bool(begun) and text.startswith(begun) and THINK not in text[len(begun) :]

    @cached_property
    def _empty_reasoning(self) -> str:
        shown = str(self.tokenizer.decode(self.prompt([*HISTORY, HISTORY[0]]).tolist()))
        start = str(self.tokenizer.decode(self.prompt(HISTORY[:1]).tolist()))
        before = shown.partition(RESPONSE)[0]
        return before[len(start) :] if before.startswith(start) and END_THINK in before[len(start) :] else ""

    def _with_calls(self, response_ids: TokenIds, parsed: ParsedResponse) -> str:
        """Return the response without its reasoning, and with its tool calls in the model's original text."""
        first = min((call.token_span[0] for call in parsed.tool_calls if call.token_span is not None), default=0)
        if parsed.reasoning_content is None:
            return self.text(response_ids)
        before = self._library.parse_response(_plain_ids(response_ids[:first]))
        return f"{before.content}{self.text(response_ids[first:])}"

    def _rendered(self, messages: str, tools: str) -> Rendered:
        conversation = _plain(self.control_tokens.read(json.loads(messages)))
        tool_list = self.control_tokens.plain(json.loads(tools))
        tokens = self._library.render_ids(conversation, tools=tool_list or None, add_generation_prompt=True)
        if tool_list and tokens == self._library.render_ids(conversation, add_generation_prompt=True):
            raise RolloutError(
                "tools-not-supported",
                "The renderer of this model does not support tools.",
                "Use a model that supports tools, or remove the tools from the run.",
            )
        rendered = self.control_tokens.remove_breaks(np.array(tokens, np.int32))
        rendered.flags.writeable = False
        return rendered


def _call(parsed: ParsedToolCall, number: int) -> ToolCall | MalformedToolCall:
    if parsed.status is not ToolCallParseStatus.OK or parsed.name is None:
        return MalformedToolCall(text=parsed.raw, problem=PROBLEMS.get(parsed.status, str(parsed.status)))
    arguments = {} if parsed.arguments is None else parsed.arguments
    if not isinstance(arguments, Mapping):
        return MalformedToolCall(text=parsed.raw, problem=PROBLEMS[ToolCallParseStatus.INVALID_JSON])
    return ToolCall(name=parsed.name, arguments=arguments, id=parsed.id or f"call_{number}")


def _plain(messages: Sequence[Message]) -> list[Any]:
    """Convert messages for the library: as for a template, and null content becomes empty."""
    return [plain_message(dict(message) | {"content": message.get("content") or ""}) for message in messages]


def _convert_tools(tools: Sequence[Tool]) -> list[Any] | None:
    return [dict(tool) for tool in tools] or None


def _plain_ids(token_ids: TokenIds) -> list[int]:
    return [int(token) for token in token_ids]
