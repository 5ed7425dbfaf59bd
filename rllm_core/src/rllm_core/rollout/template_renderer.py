"""TemplateRenderer: converts *new* messages to tokens with the model's chat template, once per message.

Sampled tokens are never decoded and tokenized again. The next prompt consists of the tokens so far and the tokens of
the new messages.
"""

from __future__ import annotations

import json
import os.path
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.messages import MalformedToolCall, Message, Response, Tool, ToolCall, read_text
from rllm_core.errors import RolloutError, failures_as
from rllm_core.rollout.call_format import CallFormat, call_format
from rllm_core.rollout.control_tokens import RARE, ControlTokens, replace_surrogates

if TYPE_CHECKING:
    from rllm_core.contracts.renderer import RendererSetup
    from rllm_core.rollout.options import ControlTokensInText, TemplateParams

RESPONSE = "REPLYPLACEHOLDER"
"""Placeholder for the model's response, used to find the text that the template writes after a response."""

NEXT = "NEXTPLACEHOLDER"
"""Placeholder for the message after the model's response."""

THINK, END_THINK = "<think>", "</think>"
REASONING_MARKS = ((THINK, END_THINK, ""), ("<|channel>", "<channel|>", "thought\n"))
"""Strings that models write before and after their reasoning, and a word that some models write at its start."""

HISTORY = ({"role": "user", "content": "."}, {"role": "assistant", "content": RESPONSE})
"""A short history. The tokens of new messages must not depend on how long the conversation is."""

TOKENS_AFTER_THINK = 4
"""Number of tokens at the end of a prompt in which the template's ``<think>`` is searched, including ``<think>``
itself."""

DATE_FUNCTION = "strftime_now"
"""The function with which chat templates write the date, for example in Llama 3.2 and gpt-oss."""

CLEANED_UP = 24
"""Number of characters at the end of a text that later characters may change, if the tokenizer removes spaces before
punctuation. It exceeds the combined reach of all these replacements."""

Rendered = NDArray[np.int32]
TokenIds = Sequence[int] | NDArray[np.int32]


class Tokenizer(Protocol):
    """The methods of a Hugging Face tokenizer that the renderer uses."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...
    def encode(self, text: str, *, add_special_tokens: bool) -> Any: ...
    def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> Any: ...


class TemplateRenderer:
    """The conversion between messages and tokens for one model.

    Results depend only on the arguments and are cached.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop_ids: Iterable[int],
        template_options: Mapping[str, Any] | None = None,
        control_tokens: ControlTokensInText = "keep",
        date: date | None = None,
    ) -> None:
        """Create the renderer of a model.

        Args:
            tokenizer: a tokenizer with a chat template.
            stop_ids: the tokens that end a response.
            template_options: options for the chat template, such as ``{"enable_thinking": False}``.
            control_tokens: see `RendererParams.control_tokens`.
            date: see `TemplateParams.date`.
        """
        self.tokenizer = tokenizer
        self._template_options = dict(template_options or {})
        self.writes_current_date = date is None and DATE_FUNCTION in str(getattr(tokenizer, "chat_template", ""))
        """True if prompts of different days are different."""
        if date is not None:
            self._template_options[DATE_FUNCTION] = date.strftime
        self.stop_ids = frozenset(stop_ids)
        self.control_tokens = ControlTokens(tokenizer, self.stop_ids, control_tokens)
        self._prompt = lru_cache(maxsize=4096)(self._render_prompt)
        self._continuation = lru_cache(maxsize=4096)(self._render_continuation)
        self._turn_end = lru_cache(maxsize=256)(self._render_turn_end)
        self._after = lru_cache(maxsize=4096)(self._render_after)
        self._text = lru_cache(maxsize=4096)(self._decode)

    @cached_property
    def reasoning_ids(self) -> tuple[int, int] | None:
        """The tokens of `REASONING_MARKS`. None if one of them is not a single token of this model."""
        return None if self._reasoning is None else self._reasoning[0]

    @cached_property
    def _reasoning(self) -> tuple[tuple[int, int], str] | None:
        """The tokens around reasoning, and the word at the start of the reasoning."""
        template = str(getattr(self.tokenizer, "chat_template", ""))
        for before, after, word in sorted(REASONING_MARKS, key=lambda marks: marks[0] not in template):
            start, end = self._encode(before), self._encode(after)
            # A tokenizer may map two unknown words to a single token each, but then to the same token.
            if len(start) == len(end) == 1 and start[0] != end[0]:
                return (int(start[0]), int(end[0])), word
        return None

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Rendered:
        """Return the tokens, (n,) int32, of a conversation that starts with `messages`, up to the start of the
        response."""
        return self._prompt(_as_json(messages), _as_json(tools))

    def bridge(
        self, prompt_ids: TokenIds, response_ids: TokenIds, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> Rendered:
        """Return the tokens, (n,) int32, of `prompt_ids`, `response_ids` and the new messages. `tools` are in the first
        prompt.

        If the response did not close its reasoning, it is closed before the end of the turn.
        """
        prompt, response = np.asarray(prompt_ids, np.int32), np.asarray(response_ids, np.int32)
        closing, named = self._closing(prompt, response), self._tools_as_json(tools)
        last = (*response[-len(self._turn_end(named)) - 1 :].tolist(), *closing)
        after = self._after(last, _as_json(messages), named)
        return np.concatenate((prompt, response, np.array(closing, np.int32), after))

    def continuation(self, last_token: int, messages: Sequence[Message]) -> Rendered:
        """Return the tokens, (n,) int32, between a sampled response and the next one: the end of the model's turn and
        `messages`.

        `last_token` is the last sampled token. If it is a stop token that the template would write, it is not repeated.
        """
        return self._after((int(last_token),), _as_json(messages), "[]")

    def _tools_as_json(self, tools: Sequence[Tool]) -> str:
        """Return the tools as JSON if the tokenizer has several templates by name, and has one for prompts with tools.

        All parts of a conversation use the same template.
        """
        has_names = tools and isinstance(getattr(self.tokenizer, "chat_template", None), Mapping)
        return _as_json(tools) if has_names else "[]"

    def _render_after(self, response: tuple[int, ...], messages: str, tools: str) -> Rendered:
        """Return the tokens, (n,) int32, after a response, without the part of the turn's end that was sampled."""
        tokens = self._continuation(messages, tools)
        end = self._turn_end(tools).tolist()
        if end and tokens[: len(end)].tolist() == end:
            if response and response[-1] == end[-1]:
                return tokens[len(end) :]
            sampled = range(len(end) - 1, 0, -1)
            return tokens[next((size for size in sampled if [*response[-size:]] == end[:size]), 0) :]
        repeated = bool(response) and response[-1] in self.stop_ids and tokens.size and tokens[0] == response[-1]
        return tokens[1:] if repeated else tokens

    def _render_turn_end(self, tools: str) -> Rendered:
        """Return the tokens, (n,) int32, that the template writes after a response, up to a stop token. Empty if it
        writes none."""
        try:
            rendered = self._template([*HISTORY, {"role": "user", "content": NEXT}], json.loads(tools))
        except RolloutError:
            return self._encode("")
        tokens = self._encode(rendered.rpartition(RESPONSE)[2].partition(NEXT)[0])
        stops = np.flatnonzero(np.isin(tokens, [*self.stop_ids]))
        return tokens[: int(stops[0]) + 1] if stops.size else tokens[:0]

    def response_ids(self, text: str) -> Rendered:
        """Return the tokens, (n,) int32, of a response that is only known as text, with the template's stop token.

        It is for workflows whose text comes from an external client. The tokens sampled there may differ for the same
        text, so use the sampled tokens if you have them.
        """
        return np.concatenate((self.encode(text, add_special_tokens=False), self._turn_end("[]")))

    def text(self, token_ids: TokenIds) -> str:
        """Return the text of a response, without special tokens."""
        return self._text(np.asarray(token_ids, np.int32).tobytes())

    def token_texts(self, token_ids: TokenIds) -> list[str]:
        """Return the text of each token, including special tokens."""
        return token_texts(self.tokenizer, token_ids)

    @cached_property
    def call_format(self) -> CallFormat | None:
        """The format of this model's tool calls. None if the template shows none, or none that rllm can parse."""
        return call_format(self._template)

    def parse(self, prompt_ids: TokenIds, response_ids: TokenIds, tools: Sequence[Tool] = ()) -> Response:
        """Parse a response. Reasoning is separated if the model has tokens for it. Calls are parsed in the template's
        format.

        Calls remain in the content if `call_format` is None, or if the prompt had no tools.
        """
        text = self.text(response_ids)
        thinking_ids, rest_ids = self._split_reasoning(prompt_ids, np.asarray(response_ids, np.int32))
        reasoning = None if thinking_ids is None else self._reasoning_text(thinking_ids)
        content = text if thinking_ids is None else self.text(rest_ids).strip()
        if not tools or self.call_format is None:
            return Response(text=text, content=content, reasoning=reasoning)
        rest, calls = self.call_format.read(self._with_marks(rest_ids) if self._marks_are_special else content)
        if not calls:
            return Response(text=text, content=content, reasoning=reasoning)
        return Response(
            text=text,
            content=rest,
            reasoning=reasoning,
            tool_calls=tuple(call for call in calls if isinstance(call, ToolCall)),
            malformed_calls=tuple(call for call in calls if isinstance(call, MalformedToolCall)),
        )

    def parse_partial(self, prompt_ids: TokenIds, response_ids: TokenIds, tools: Sequence[Tool] = ()) -> Response:
        """See `StreamingRenderer.parse_partial`.

        If the model has reasoning tokens, a later token can turn all previous text into reasoning. So reasoning is
        final at once, and content is final only when the response has ended.
        """
        response = np.asarray(response_ids, np.int32)
        text = self._final_text(response)
        if self.reasoning_ids is None:
            return Response(text=text, content=self._final_content(text) if tools else text)
        thinking_ids, _ = self._split_reasoning(prompt_ids, response)
        reasoning = "" if thinking_ids is None else self._final_text(thinking_ids)
        _, word = self._reasoning or ((), "")
        begun = "" if word.startswith(reasoning) else reasoning.removeprefix(word).strip()
        return Response(text=text, content="", reasoning=begun or None)

    def _final_text(self, token_ids: Rendered) -> str:
        """Return the part of the text that later tokens cannot change: `_decode` without its last characters."""
        texts = [self._decode(ids.tobytes()) for ids in (token_ids, np.append(token_ids, self._continuing))]
        # Tokens that are bytes can form other characters together with the next token.
        same = os.path.commonprefix(texts).rstrip("\ufffd")  # noqa: RUF071  (characters are compared)
        return same[: len(same) - self._unstable_chars] if self._unstable_chars < len(same) else ""

    @cached_property
    def _continuing(self) -> Rendered:
        return self.encode(RARE, add_special_tokens=False)[-1:]

    @cached_property
    def _unstable_chars(self) -> int:
        """Number of characters that the tokenizer may still change."""
        return 0 if " ." in self._decode(self._encode("a . b").tobytes()) else CLEANED_UP

    def _final_content(self, text: str) -> str:
        """Return the text before the first tool call. `CallFormat.read` removes the spaces around it."""
        if self.call_format is None:
            return text
        if not self.call_format.start:
            return "" if text.lstrip()[:1] in ("", "{") else text
        if self._marks_are_special or text[:1].isspace():
            return ""
        return before_any(text, [self.call_format.start]).rstrip()

    def _split_reasoning(self, prompt_ids: TokenIds, response: Rendered) -> tuple[Rendered | None, Rendered]:
        """Return the tokens of the reasoning, or None if it has none, and the tokens after it."""
        if self.reasoning_ids is None:
            return None, response
        start, end = self.reasoning_ids
        ends = np.flatnonzero(response == end)
        if not ends.size and start not in response and not in_reasoning(prompt_ids, self.reasoning_ids):
            return None, response
        closed = int(ends[-1]) if ends.size else len(response)
        thinking_ids = response[:closed]
        return thinking_ids[~np.isin(thinking_ids, self.reasoning_ids)], response[closed + 1 :]

    def _reasoning_text(self, thinking_ids: Rendered) -> str:
        _, word = self._reasoning or ((), "")
        return self.text(thinking_ids).removeprefix(word).strip()

    @cached_property
    def _marks_are_special(self) -> bool:
        """True if the marks of tool calls are special tokens, which `text` removes."""
        marks = self.call_format.start + self.call_format.end if self.call_format else ""
        return self.text(self._encode(marks)).replace(" ", "") != marks

    def _with_marks(self, rest_ids: Rendered) -> str:
        kept = rest_ids[~np.isin(rest_ids, [*self.stop_ids])]
        return str(self.tokenizer.decode(kept.tolist(), skip_special_tokens=False))

    def _closing(self, prompt_ids: TokenIds, response_ids: TokenIds) -> list[int]:
        """Return ``</think>`` if the response was cut off during reasoning. Otherwise the model would continue to
        reason.

        Return nothing after a sampled stop token, because the model ended its turn itself.
        """
        if self.reasoning_ids is None or (len(response_ids) and int(response_ids[-1]) in self.stop_ids):
            return []
        thinking = ends_in_reasoning(prompt_ids, response_ids, self.reasoning_ids)
        return [self.reasoning_ids[1]] if thinking else []

    def _render_prompt(self, messages: str, tools: str) -> Rendered:
        shown, offered = self.control_tokens.read(json.loads(messages)), self.control_tokens.plain(json.loads(tools))
        text = self._template(shown, offered)
        if offered and text == self._template(shown, []):
            raise RolloutError(
                "tools-not-supported",
                "The chat template of this model does not show tools.",
                "Choose a model that supports tools, or a different renderer with rllm.renderer.",
            )
        return self._encode(text)

    def _render_continuation(self, messages: str, tools: str) -> Rendered:
        new = self.control_tokens.read(json.loads(messages), after_response=True)
        rendered = self._template([*HISTORY, *new], json.loads(tools))
        _, found, after = rendered.partition(RESPONSE)
        if not found or RESPONSE in after:
            raise RolloutError(
                "unsupported-chat-template",
                "The model's chat template does not show an assistant message unchanged, exactly once.",
                "Multi-turn rollouts need a template that keeps assistant messages. Set tokenizer.chat_template.",
            )
        return self._encode(after)

    def _template(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
        hint = "Change the messages: for example, merge messages of a role, or write system text into a user's message."
        with failures_as(RolloutError, "The model's chat template", hint):
            rendered = self.tokenizer.apply_chat_template(
                [plain_message(message) for message in messages],
                tokenize=False,
                add_generation_prompt=True,
                **({"tools": tools} if tools else {}),
                **self._template_options,
            )
        return str(rendered)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Rendered:
        """Return the tokens, (n,) int32, of a text. See `PlainTextRenderer`."""
        valid = replace_surrogates(text)
        tokens = np.array(self.tokenizer.encode(valid, add_special_tokens=add_special_tokens), np.int32)
        start = getattr(self.tokenizer, "bos_token_id", None)
        if add_special_tokens and tokens[:2].tolist() == [start, start]:
            tokens = tokens[1:]
        tokens.flags.writeable = False
        return tokens

    def _encode(self, text: str) -> Rendered:
        # The template itself writes special tokens such as <s>.
        tokens = self.encode(text, add_special_tokens=False)
        return self.control_tokens.remove_breaks(tokens) if RARE in text else tokens

    def _decode(self, token_ids: bytes) -> str:
        return str(self.tokenizer.decode(np.frombuffer(token_ids, np.int32).tolist(), skip_special_tokens=True))


def template_renderer(setup: RendererSetup, params: TemplateParams) -> TemplateRenderer:
    """Return a renderer with the chat template of the model's tokenizer. It is the plugin ``template``."""
    return TemplateRenderer(setup.tokenizer, setup.stop_ids, setup.template_options, params.control_tokens, params.date)


def before_any(text: str, marks: Iterable[str]) -> str:
    """Return the text before the first mark. A mark may also be incomplete at the end of the text."""
    places = [len(text)]
    for mark in marks:
        ends = range(max(len(text) - len(mark) + 1, 0), len(text))
        begun = next((at for at in ends if mark.startswith(text[at:])), len(text))
        found = text.find(mark)
        places.append(begun if found < 0 else found)
    return text[: min(places)]


def token_texts(tokenizer: Tokenizer, token_ids: TokenIds) -> list[str]:
    """Return the text of each token, including special tokens. Bytes that are not valid UTF-8 become U+FFFD.

    Some tokenizers remove the space before the first word of a text. So each token is decoded after a different token.
    """
    before = [int(token) for token in tokenizer.encode("a", add_special_tokens=False)][-1:]
    start = str(tokenizer.decode(before, skip_special_tokens=False))
    texts = []
    for token in map(int, token_ids):
        text = str(tokenizer.decode([*before, token], skip_special_tokens=False))
        is_joined = not text.startswith(start)
        texts.append(str(tokenizer.decode([token], skip_special_tokens=False)) if is_joined else text[len(start) :])
    return texts


def in_reasoning(prompt_ids: TokenIds, reasoning_ids: tuple[int, int]) -> bool:
    """Return True if the prompt ends inside the model's reasoning, opened by the template; see `TOKENS_AFTER_THINK`."""
    start, end = reasoning_ids
    tail = [int(token) for token in prompt_ids[-TOKENS_AFTER_THINK:]]
    return start in tail and end not in tail[tail.index(start) :]


def ends_in_reasoning(prompt_ids: TokenIds, response_ids: TokenIds, reasoning_ids: tuple[int, int]) -> bool:
    """Return True if a response ends inside reasoning that the response or the template opened."""
    response = np.asarray(response_ids, np.int32)
    marks = response[np.isin(response, reasoning_ids)]
    return bool(marks[-1] == reasoning_ids[0]) if marks.size else in_reasoning(prompt_ids, reasoning_ids)


def plain_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message in the form that templates accept: parts as one string, arguments of tool calls as objects.

    Raises:
        RolloutError: a part of the message is not text.
    """
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        if any(part.get("type") != "text" for part in content):
            raise RolloutError(
                "unsupported-chat-template",
                "The model's chat template supports only text, and a message has other parts.",
                "Send only text, or choose a renderer for such parts with rllm.renderer.",
            )
        message = message | {"content": read_text(message)}
    if calls:
        functions = [call["function"] | {"arguments": json.loads(call["function"]["arguments"])} for call in calls]
        both = zip(calls, functions, strict=True)
        message = message | {"tool_calls": [call | {"function": function} for call, function in both]}
    return message


_ENCODER = json.JSONEncoder(default=dict)
"""Created once, because `json.dumps` with an option creates an encoder per call. That is slower than the rest of a
cached prompt."""


def _as_json(data: Sequence[Mapping[str, Any]]) -> str:
    """Return a key for the caches. It keeps the order of keys, because templates may show it.

    Raises:
        RolloutError: a message or a tool is not JSON data.
    """
    try:
        return _ENCODER.encode([*data]) if data else "[]"
    except (TypeError, ValueError) as error:
        raise RolloutError(
            "not-json",
            f"A message or tool is not JSON data: {error}.",
            "Use only text, numbers, lists and objects in messages and tools.",
        ) from error
