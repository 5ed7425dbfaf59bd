"""Tokens are shown with their texts."""

from __future__ import annotations

from typing import Any

from rllm_core.rollout.template_renderer import token_texts

WORDS = {0: "a", 1: " the", 2: "re", 3: "</s>", 4: "\ufffd"}


class DropsTheFirstSpace:
    """As tokenizers of SentencePiece."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [0]

    def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return "".join(WORDS[token] for token in token_ids).removeprefix(" ")

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        raise NotImplementedError


def test_a_space_before_a_word_is_part_of_its_token() -> None:
    assert token_texts(DropsTheFirstSpace(), [1, 2, 3, 4]) == [" the", "re", "</s>", "\ufffd"]
