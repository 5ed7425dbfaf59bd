"""TemplateRenderer: the model's chat template turns *new* messages into tokens, once.

What the model sampled is never decoded and tokenised again: the next prompt is the tokens so far plus the tokens of
what was said since.
"""

from __future__ import annotations

import json
import os.path
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.messages import MalformedToolCall, Message, Response, Tool, ToolCall, text_of
from rllm_core.errors import RolloutError, failures_as
from rllm_core.rollout.call_format import CallFormat, call_format

if TYPE_CHECKING:
    from rllm_core.contracts.plugin import NoParams
    from rllm_core.contracts.renderer import RendererSetup

RESPONSE = "REPLYPLACEHOLDER"
"""Stands for the model's reply while the template shows what follows one."""

NEXT = "NEXTPLACEHOLDER"
"""Placeholder for the message after the model's reply."""

THINK, END_THINK = "<think>", "</think>"
REASONING_MARKS = ((THINK, END_THINK, ""), ("<|channel>", "<channel|>", "thought\n"))
"""What models write before and after their thoughts, and a word that some models write first."""

HISTORY = ({"role": "user", "content": "."}, {"role": "assistant", "content": RESPONSE})
"""A short history. The tokens of new messages must not depend on how long the conversation is."""

TOKENS_AFTER_THINK = 4
"""How many tokens at the end of a prompt are looked through for the ``<think>`` of the template, itself included."""

NO_TOKEN = -1

RARE = "\U000f0000"
"""A character that no vocabulary has as one token: its last token is a byte that continues a character."""
CLEANED_UP = 24
"""Characters at the end of a text that later ones may change, if the tokenizer removes the spaces before punctuation:
more than all its replacements reach back together."""

Rendered = NDArray[np.int32]
TokenIds = Sequence[int] | NDArray[np.int32]


class Tokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...
    def encode(self, text: str, *, add_special_tokens: bool) -> Any: ...
    def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> Any: ...


class TemplateRenderer:
    """Messages to tokens and tokens to text for one model. Results are cached; they depend on the arguments only."""

    def __init__(
        self, tokenizer: Tokenizer, stop_ids: Iterable[int], template_options: Mapping[str, Any] | None = None
    ) -> None:
        """Make one for a model.

        Args:
            tokenizer: with a chat template.
            stop_ids: the tokens that end a reply.
            template_options: passed on to the chat template, such as ``{"enable_thinking": False}``.
        """
        self.tokenizer = tokenizer
        self._template_options = dict(template_options or {})
        self.stop_ids = frozenset(stop_ids)
        self._prompt = lru_cache(maxsize=4096)(self._render_prompt)
        self._continuation = lru_cache(maxsize=4096)(self._render_continuation)
        self._text = lru_cache(maxsize=4096)(self._decode)

    @cached_property
    def reasoning_ids(self) -> tuple[int, int] | None:
        """The tokens of `REASONING_MARKS`; None if a mark is not one token of this model."""
        return None if self._reasoning is None else self._reasoning[0]

    @cached_property
    def _reasoning(self) -> tuple[tuple[int, int], str] | None:
        """The tokens around thoughts, and the word that comes first in them."""
        template = str(getattr(self.tokenizer, "chat_template", ""))
        for before, after, word in sorted(REASONING_MARKS, key=lambda marks: marks[0] not in template):
            start, end = self._encode(before), self._encode(after)
            # Two words that a tokenizer does not know may be one token each as well, but the same one.
            if len(start) == len(end) == 1 and start[0] != end[0]:
                return (int(start[0]), int(end[0])), word
        return None

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Rendered:
        """(n,) int32 tokens of a conversation that starts with `messages`, up to where the model's reply begins."""
        return self._prompt(_as_json(messages), _as_json(tools))

    def bridge(
        self, prompt_ids: TokenIds, response_ids: TokenIds, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> Rendered:
        """(n,) int32 tokens: `prompt_ids`, `response_ids`, and what follows them. `tools` stand in the first prompt.

        Thoughts that the reply leaves open are closed before the end of its turn.
        """
        closing = self._closing(prompt_ids, response_ids)
        after = self._after([*response_ids[-len(self._turn_end) - 1 :], *closing], messages)
        return np.concatenate([np.asarray(tokens, np.int32) for tokens in (prompt_ids, response_ids, closing, after)])

    def continuation(self, last_token: int, messages: Sequence[Message]) -> Rendered:
        """(n,) int32 tokens between a sampled reply and the next one: the end of the model's turn, then `messages`.

        `last_token` is the last token the model sampled; a stop token that the template would write is not repeated.
        """
        return self._after([last_token], messages)

    def _after(self, response: Sequence[int], messages: Sequence[Message]) -> Rendered:
        """(n,) int32 tokens after a reply, without the part of the turn's end that the model sampled itself."""
        tokens = self._continuation(_as_json(messages))
        end = self._turn_end.tolist()
        if end and tokens[: len(end)].tolist() == end:
            if response and response[-1] == end[-1]:
                return tokens[len(end) :]
            sampled = range(len(end) - 1, 0, -1)
            return tokens[next((size for size in sampled if list(response[-size:]) == end[:size]), 0) :]
        repeated = bool(response) and response[-1] in self.stop_ids and tokens.size and tokens[0] == response[-1]
        return tokens[1:] if repeated else tokens

    @cached_property
    def _turn_end(self) -> Rendered:
        """(n,) int32 tokens that the template writes after a reply, up to a stop token. Empty if it writes none."""
        try:
            rendered = self._template([*HISTORY, {"role": "user", "content": NEXT}], [])
        except RolloutError:
            return self._encode("")
        tokens = self._encode(rendered.rpartition(RESPONSE)[2].partition(NEXT)[0])
        stops = np.flatnonzero(np.isin(tokens, [*self.stop_ids]))
        return tokens[: int(stops[0]) + 1] if stops.size else tokens[:0]

    def response_ids(self, text: str) -> Rendered:
        """(n,) int32 tokens of a reply that is known as text alone, with the stop token that the template writes.

        For workflows that get text from somebody else's client. What was sampled there may be other tokens of the same
        text, so hand on the sampled ones where there are any.
        """
        after = self.continuation(NO_TOKEN, ())
        stop = after[:1] if after.size and int(after[0]) in self.stop_ids else after[:0]
        return np.concatenate((self._encode(text), stop))

    def text(self, token_ids: TokenIds) -> str:
        """The words of a reply, without special tokens."""
        return self._text(np.asarray(token_ids, np.int32).tobytes())

    def token_texts(self, token_ids: TokenIds) -> list[str]:
        """The text of each token, special tokens included."""
        return token_texts(self.tokenizer, token_ids)

    @cached_property
    def call_format(self) -> CallFormat | None:
        """How this model writes tool calls; None where its template shows none, or none that can be read."""
        return call_format(self._template)

    def parse(self, prompt_ids: TokenIds, response_ids: TokenIds, tools: Sequence[Tool] = ()) -> Response:
        """The reply, with its thoughts apart where the model has tokens for them, and its calls as the template's.

        Calls stay in the content if `call_format` is None, or if the model was offered no tools.
        """
        text = self.text(response_ids)
        thought, said = self._thought_and_said(prompt_ids, np.asarray(response_ids, np.int32))
        reasoning = None if thought is None else self._thought_text(thought)
        content = text if thought is None else self.text(said).strip()
        if not tools or self.call_format is None:
            return Response(text=text, content=content, reasoning=reasoning)
        rest, calls = self.call_format.read(self._with_marks(said) if self._marks_are_special else content)
        if not calls:
            return Response(text=text, content=content, reasoning=reasoning)
        return Response(
            text=text,
            content=rest,
            reasoning=reasoning,
            tool_calls=tuple(call for call in calls if isinstance(call, ToolCall)),
            malformed_calls=tuple(call for call in calls if isinstance(call, MalformedToolCall)),
        )

    def settled(self, prompt_ids: TokenIds, response_ids: TokenIds, tools: Sequence[Tool] = ()) -> Response:
        """See `StreamingRenderer.settled`.

        If the model has tokens around its thoughts, a later one can turn all that was said into a thought. So thoughts
        are final at once, and words when the reply has ended.
        """
        response = np.asarray(response_ids, np.int32)
        text = self._settled_text(response)
        if self.reasoning_ids is None:
            return Response(text=text, content=self._settled_content(text) if tools else text)
        thought, _ = self._thought_and_said(prompt_ids, response)
        reasoning = "" if thought is None else self._settled_text(thought)
        _, word = self._reasoning or ((), "")
        begun = "" if word.startswith(reasoning) else reasoning.removeprefix(word).strip()
        return Response(text=text, content="", reasoning=begun or None)

    def _settled_text(self, token_ids: Rendered) -> str:
        """The beginning of a text that more tokens do not change: `_decode` without its last characters."""
        texts = [self._decode(ids.tobytes()) for ids in (token_ids, np.append(token_ids, self._continuing))]
        # Tokens that are bytes may become other characters together with the next one.
        same = os.path.commonprefix(texts).rstrip("\ufffd")  # noqa: RUF071  (characters are compared)
        return same[: len(same) - self._unsettled] if self._unsettled < len(same) else ""

    @cached_property
    def _continuing(self) -> Rendered:
        return self._encode(RARE)[-1:]

    @cached_property
    def _unsettled(self) -> int:
        """Number of characters that the tokenizer may still change."""
        return 0 if " ." in self._decode(self._encode("a . b").tobytes()) else CLEANED_UP

    def _settled_content(self, text: str) -> str:
        """The words before the first call of a tool; `CallFormat.read` removes the spaces around them."""
        if self.call_format is None:
            return text
        if not self.call_format.start:
            return "" if text.lstrip()[:1] in ("", "{") else text
        if self._marks_are_special or text[:1].isspace():
            return ""
        return before_any(text, [self.call_format.start]).rstrip()

    def _thought_and_said(self, prompt_ids: TokenIds, response: Rendered) -> tuple[Rendered | None, Rendered]:
        """The tokens of the thoughts, None where there are none, and those behind them."""
        if self.reasoning_ids is None:
            return None, response
        start, end = self.reasoning_ids
        ends = np.flatnonzero(response == end)
        if not ends.size and start not in response and not in_reasoning(prompt_ids, self.reasoning_ids):
            return None, response
        closed = int(ends[-1]) if ends.size else len(response)
        thought = response[:closed]
        return thought[~np.isin(thought, self.reasoning_ids)], response[closed + 1 :]

    def _thought_text(self, thought: Rendered) -> str:
        _, word = self._reasoning or ((), "")
        return self.text(thought).removeprefix(word).strip()

    @cached_property
    def _marks_are_special(self) -> bool:
        """Whether the marks of calls are special tokens, which `text` leaves out."""
        marks = self.call_format.start + self.call_format.end if self.call_format else ""
        return self.text(self._encode(marks)).replace(" ", "") != marks

    def _with_marks(self, said: Rendered) -> str:
        kept = said[~np.isin(said, [*self.stop_ids])]
        return str(self.tokenizer.decode(kept.tolist(), skip_special_tokens=False))

    def _closing(self, prompt_ids: TokenIds, response_ids: TokenIds) -> list[int]:
        """``</think>`` behind a reply that was cut off while the model thought; else the model would think on there.

        Nothing behind a sampled stop token: the model has ended its turn itself.
        """
        if self.reasoning_ids is None or (len(response_ids) and int(response_ids[-1]) in self.stop_ids):
            return []
        thinking = ends_in_reasoning(prompt_ids, response_ids, self.reasoning_ids)
        return [self.reasoning_ids[1]] if thinking else []

    def _render_prompt(self, messages: str, tools: str) -> Rendered:
        said, offered = json.loads(messages), json.loads(tools)
        text = self._template(said, offered)
        if offered and text == self._template(said, []):
            raise RolloutError(
                "tools-not-supported",
                "The chat template of this model does not show tools.",
                "Choose a model that is made for them, or another renderer (rllm.renderer).",
            )
        return self._encode(text)

    def _render_continuation(self, messages: str) -> Rendered:
        rendered = self._template([*HISTORY, *json.loads(messages)], [])
        _, found, after = rendered.partition(RESPONSE)
        if not found or RESPONSE in after:
            raise RolloutError(
                "unsupported-chat-template",
                "The model's chat template does not show an assistant message unchanged, exactly once.",
                "Multi-turn rollouts need a template that keeps the assistant's words; set tokenizer.chat_template.",
            )
        return self._encode(after)

    def _template(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
        with failures_as(RolloutError, "The model's chat template", "Choose another with rllm.renderer."):
            rendered = self.tokenizer.apply_chat_template(
                [_plain(message) for message in messages],
                tokenize=False,
                add_generation_prompt=True,
                **({"tools": tools} if tools else {}),
                **self._template_options,
            )
        return str(rendered)

    def _encode(self, text: str) -> Rendered:
        # The template writes special tokens such as <s> itself.
        tokens = np.array(self.tokenizer.encode(text, add_special_tokens=False), np.int32)
        tokens.flags.writeable = False
        return tokens

    def _decode(self, token_ids: bytes) -> str:
        return str(self.tokenizer.decode(np.frombuffer(token_ids, np.int32).tolist(), skip_special_tokens=True))


def template_renderer(setup: RendererSetup, params: NoParams) -> TemplateRenderer:
    """``template``: the chat template that comes with the model's tokenizer."""
    return TemplateRenderer(setup.tokenizer, setup.stop_ids, setup.template_options)


def before_any(text: str, marks: Iterable[str]) -> str:
    """The part of a text before the first mark, or before the text's end if a mark could begin there."""
    places = [len(text)]
    for mark in marks:
        ends = range(max(len(text) - len(mark) + 1, 0), len(text))
        begun = next((at for at in ends if mark.startswith(text[at:])), len(text))
        found = text.find(mark)
        places.append(begun if found < 0 else found)
    return text[: min(places)]


def token_texts(tokenizer: Tokenizer, token_ids: TokenIds) -> list[str]:
    """The text of each token by itself, special tokens included; bytes that are no UTF-8 as U+FFFD.

    Some tokenizers leave the space before the first word of a text out, so each token is read behind another.
    """
    before = [int(token) for token in tokenizer.encode("a", add_special_tokens=False)][-1:]
    start = str(tokenizer.decode(before, skip_special_tokens=False))
    texts = []
    for token in map(int, token_ids):
        text = str(tokenizer.decode([*before, token], skip_special_tokens=False))
        alone = not text.startswith(start)
        texts.append(str(tokenizer.decode([token], skip_special_tokens=False)) if alone else text[len(start) :])
    return texts


def in_reasoning(prompt_ids: TokenIds, reasoning_ids: tuple[int, int]) -> bool:
    """Whether the template ends the prompt inside the model's thoughts; see `TOKENS_AFTER_THINK`."""
    start, end = reasoning_ids
    tail = [int(token) for token in prompt_ids[-TOKENS_AFTER_THINK:]]
    return start in tail and end not in tail[tail.index(start) :]


def ends_in_reasoning(prompt_ids: TokenIds, response_ids: TokenIds, reasoning_ids: tuple[int, int]) -> bool:
    """Whether a reply ends inside the model's thoughts, which it or the template has opened."""
    response = np.asarray(response_ids, np.int32)
    marks = response[np.isin(response, reasoning_ids)]
    return bool(marks[-1] == reasoning_ids[0]) if marks.size else in_reasoning(prompt_ids, reasoning_ids)


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message as templates take it: parts as one text, arguments of tool calls as objects."""
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        if any(part.get("type") != "text" for part in content):
            raise RolloutError(
                "unsupported-chat-template",
                "The model's chat template is for text, and a message has other parts.",
                "Send text alone, or choose a renderer for such parts with rllm.renderer.",
            )
        message = message | {"content": text_of(message)}
    if calls:
        functions = [call["function"] | {"arguments": json.loads(call["function"]["arguments"])} for call in calls]
        both = zip(calls, functions, strict=True)
        message = message | {"tool_calls": [call | {"function": function} for call, function in both]}
    return message


_ENCODER = json.JSONEncoder(default=dict)
"""Made once: `json.dumps` with an option makes one per call, which takes longer than the rest of a cached prompt."""


def _as_json(data: Sequence[Mapping[str, Any]]) -> str:
    """A key for the caches that keeps the order of keys, which templates may show.

    Raises:
        RolloutError: a message or a tool is not JSON data.
    """
    try:
        return _ENCODER.encode([*data]) if data else "[]"
    except (TypeError, ValueError) as error:
        raise RolloutError(
            "not-json",
            f"A message or tool is not JSON data: {error}.",
            "Messages hold text, numbers, lists and objects.",
        ) from error
