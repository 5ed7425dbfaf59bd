"""The chat templates that TRL ships, each with a tokenizer that shows what a renderer does with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import peers

from rllm_core.rollout.template_renderer import TemplateRenderer

TOKENS = re.compile(r"<\|[^|>]*\|?>|</?[a-z_]+>|.", re.DOTALL)
STOPS = ("<|im_end|>", "<|eot_id|>", "</s>", "<|END_OF_TURN_TOKEN|>", "<|end|>", "<end_of_turn>", "<|call|>")


class Tokenizer:
    """A template with a vocabulary of its marks and of single characters, which grows with what is said."""

    def __init__(self, template: str) -> None:
        from transformers.utils.chat_template_utils import _compile_jinja_template

        self._template = _compile_jinja_template(template)
        self._ids: dict[str, int] = {}

    def apply_chat_template(self, conversation: Any, *, tools: Any = None, tokenize: bool, **options: Any) -> str:
        return str(self._template.render(messages=conversation, tools=tools, bos_token="<s>", **options))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [self._ids.setdefault(token, len(self._ids)) for token in TOKENS.findall(text)]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        known = [*self._ids]
        tokens = [known[token] for token in token_ids]
        return "".join(token for token in tokens if not (skip_special_tokens and token in STOPS))


def templates() -> list[Path]:
    """One file for each family and version; none where TRL is not installed."""
    try:
        found = sorted((peers.folder_of("trl") / "chat_templates").glob("*.jinja"))
    except peers.PeerMissingError:
        return []
    return [path for path in found if not path.stem.endswith("_training")]


def renderer_of(path: Path) -> TemplateRenderer:
    """The renderer ``template`` of a model with this template."""
    tokenizer = Tokenizer(path.read_text(encoding="utf-8"))
    return TemplateRenderer(tokenizer, [tokenizer.encode(stop, add_special_tokens=False)[0] for stop in STOPS])
