"""Tokenizers of bytes that decode like models' tokenizers, whose later tokens change earlier text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tool_tokenizer import STOP, ToolTokenizer

from rllm_core.rollout.template_renderer import TemplateRenderer

THINK, END_THINK = 256, 257
MARKS = {THINK: "<think>", END_THINK: "</think>"}
PUNCTUATION = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


def lossy(data: bytes) -> str:
    """Decode each part that is no UTF-8 as U+FFFD."""
    return data.decode(errors="replace")


def fallback(data: bytes) -> str:
    """Decode a run of bytes beyond ASCII as one U+FFFD for each byte, unless all of it is UTF-8."""

    def decoded(run: re.Match[bytes]) -> bytes:
        try:
            return run[0].decode().encode()
        except UnicodeDecodeError:
            return "\ufffd".encode() * len(run[0])

    return re.sub(rb"[\x80-\xff]+", decoded, data).decode()


def cleaned(data: bytes) -> str:
    """Remove the spaces before punctuation."""
    text = lossy(data)
    for each in PUNCTUATION:
        text = text.replace(each, each.strip())
    return text


class ByteToolTokenizer(ToolTokenizer):
    """A tokenizer with a token for each byte, and for each mark of reasoning if the model has them."""

    def __init__(self, decoding: Callable[[bytes], str], thinks: bool) -> None:
        super().__init__()
        self._decoding = decoding
        self._thinks = thinks

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        for token, mark in MARKS.items():
            if self._thinks and text == mark:
                return [token]
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        said = (MARKS[token].encode() if token in MARKS else bytes([token]) for token in token_ids if token != STOP)
        return self._decoding(b"".join(said))


def renderer_of_bytes(decoding: Callable[[bytes], str] = lossy, thinks: bool = False) -> TemplateRenderer:
    """Return a renderer with this decoding, for a model with or without tokens around its reasoning."""
    return TemplateRenderer(ByteToolTokenizer(decoding, thinks), [STOP])
