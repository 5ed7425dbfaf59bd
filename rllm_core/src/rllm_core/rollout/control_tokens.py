"""Control tokens of a model, such as ``<|im_end|>``, in the text of messages. A tool's output must not end a turn."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.messages import read_text
from rllm_core.errors import RolloutError
from rllm_core.notices import warn_once
from rllm_core.rollout.options import ControlTokensInText

MARKS = ("<|", "<\uff5c")
"""Starts of control tokens that some tokenizers do not list as special."""
RARE = "\U000f0000"
"""A character that is not a single token in any vocabulary. Its last token is a byte that continues a character.

Written into the text of a control token, it keeps the tokenizer from reading the token. Its tokens are then removed.
"""
REPLACED = "\ufffd"
NEVER = "(?!)"
"""A regular expression without matches."""
REMEDY = "Remove it, or set rllm.renderer.control_tokens to `plain` or `keep`."


def join_surrogates(text: str) -> str:
    """Return text without surrogates, which no tokenizer reads. Pairs become one character, and others U+FFFD.

    They come from JSON that was cut in the middle of a character, and from file names that are not UTF-8.
    """
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def replace_surrogates(text: str) -> str:
    """Return text without surrogates, with a warning if it has some. See `join_surrogates`."""
    valid = join_surrogates(text)
    if valid != text:
        warn_once("text has surrogates, which are not valid Unicode. Pairs are joined, and others become U+FFFD.")
    return valid


class ControlTokens:
    """The control tokens of a tokenizer, and the text in which they are spelled."""

    def __init__(self, tokenizer: Any, stop_ids: Iterable[int], in_text: ControlTokensInText = "keep") -> None:
        """Create the control tokens of a model.

        Args:
            tokenizer: a Hugging Face tokenizer, or an object with a part of its methods.
            stop_ids: the tokens that end a response.
            in_text: see `RendererParams.control_tokens`.
        """
        self.in_text = in_text
        self._tokenizer = tokenizer
        self._stop_ids = frozenset(stop_ids)

    @cached_property
    def texts(self) -> Mapping[str, int]:
        """The text of each control token, and the token."""
        added = getattr(self._tokenizer, "added_tokens_decoder", None) or {}
        return {
            each.content: int(token)
            for token, each in added.items()
            if len(each.content.strip()) > 1 and (each.special or each.content.startswith(MARKS))
        }

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        rests: dict[str, list[str]] = {}
        for text in sorted(self.texts, key=len, reverse=True):
            rests.setdefault(text[:2], []).append(re.escape(text[2:]))
        # A vocabulary has up to a thousand of them. A pattern for each start is five times as fast.
        return re.compile("|".join(f"{re.escape(start)}(?:{'|'.join(rest)})" for start, rest in rests.items()) or NEVER)

    def read(self, messages: Sequence[Mapping[str, Any]], after_response: bool = False) -> list[dict[str, Any]]:
        """Return messages whose text is safe to render. Call `remove_breaks` with the tokens of the rendered text.

        Control tokens are plain text in tool results, and in all messages after a response except responses. In other
        messages they keep their meaning, unless `in_text` differs. In a response, only stop tokens are found.

        Args:
            messages: a conversation, or its next messages.
            after_response: True if the model responded before these messages.

        Raises:
            RolloutError: `in_text` is ``error``, and a message has a control token.
        """
        return [
            _map_text(message, self._spell if is_plain or self._is_plain(message) else _clean)
            for message, is_plain in _with_rule(messages, after_response)
        ]

    def find(self, messages: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the control tokens in the text of a conversation whose meaning depends on `in_text`."""
        return [text for message, is_plain in _with_rule(messages) if not is_plain for text in self._find_in(message)]

    def _find_in(self, message: Mapping[str, Any]) -> list[str]:
        has_only_content = len(message) == 2
        text = read_text(message) if has_only_content else json.dumps(message, ensure_ascii=False, default=str)
        found = self._pattern.findall(text)
        is_response = message.get("role") == "assistant"
        return [each for each in found if self.texts[each] in self._stop_ids] if is_response else found

    def plain(self, value: Any) -> Any:
        """Return JSON data in which no text has a control token. See `read`."""
        return _map_text(value, self._spell)

    def remove_breaks(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the tokens, (m,) int32, of rendered text without the breaks that `read` wrote into it."""
        mark = self._break_ids
        starts = [at for at in np.flatnonzero(tokens == mark[0]) if tokens[at : at + len(mark)].tolist() == mark]
        rest = np.delete(tokens, np.add.outer(np.array(starts, int), np.arange(len(mark))).ravel())
        rest.flags.writeable = False
        return rest

    @cached_property
    def _break_ids(self) -> list[int]:
        before, both = (self._tokenizer.encode(text, add_special_tokens=False) for text in ("a", f"a{RARE}"))
        mark = [int(token) for token in both[len(before) :]]
        # A vocabulary without bytes has only one token for all unknown characters.
        return [-1] if not mark or mark == [getattr(self._tokenizer, "unk_token_id", None)] else mark

    def _is_plain(self, message: Mapping[str, Any]) -> bool:
        found = self._find_in(message)
        if not found or self.in_text == "plain":
            return bool(found)
        problem = f"has the control token {found[0]!r} of the model in its text"
        if self.in_text == "error":
            raise RolloutError("control-token-in-text", f"A message of role {message.get('role')!r} {problem}.", REMEDY)
        warn_once(
            f"a message of role {message.get('role')!r} {problem}. It keeps its meaning, as in transformers. To change "
            "this, set rllm.renderer.control_tokens=plain or error."
        )
        return False

    def _spell(self, text: str) -> str:
        text = _clean(text)
        return self._pattern.sub(lambda found: f"{found[0][:-1]}{RARE}{found[0][-1]}", text)


def _with_rule(
    messages: Sequence[Mapping[str, Any]], after_response: bool = False
) -> Iterator[tuple[Mapping[str, Any], bool]]:
    """Yield each message, and True if control tokens in its text are always plain."""
    for message in messages:
        is_response = message.get("role") == "assistant"
        yield message, message.get("role") == "tool" or (after_response and not is_response)
        after_response |= is_response


def _clean(text: str) -> str:
    return text if text.isascii() else replace_surrogates(text).replace(RARE, REPLACED)


def _map_text(value: Any, change: Callable[[str], str]) -> Any:
    """Return JSON data with each text changed, except keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map_text(each, change) for key, each in value.items()}
    return [_map_text(each, change) for each in value] if isinstance(value, list | tuple) else value
