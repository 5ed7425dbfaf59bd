"""What a renderer cannot do for a run is said when the renderer is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rllm_core.errors import ConfigError
from rllm_core.rollout.renderer_checks import check_reasoning_is_kept
from rllm_core.rollout.template_renderer import TemplateRenderer

STOP = ord("$")


class Thinking:
    """One token per character; shows thoughts if it is told to."""

    def __init__(self, shows: bool) -> None:
        self.shows = shows

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **options: Any) -> str:
        thought = [
            f"({m['reasoning_content']})" if self.shows and "reasoning_content" in m else "" for m in conversation
        ]
        said = [f"<{m['role'][0]}>{t}{m['content']}$" for m, t in zip(conversation, thought, strict=True)]
        return "".join(said) + "<a>"

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(chr(token) for token in token_ids if token != STOP)


class Rewriting(TemplateRenderer):
    def bridge(self, *arguments: Any) -> Any:
        return None


def test_thoughts_that_the_next_prompt_would_hide_are_refused_where_they_are_to_be_kept() -> None:
    renderer: Any = Rewriting(Thinking(shows=False), [STOP])
    with pytest.raises(ConfigError, match="accumulate_reasoning is true, and renderer 'strict'") as caught:
        check_reasoning_is_kept(renderer, "strict")
    assert caught.value.hint.startswith("Set rllm.accumulate_reasoning=false")


@pytest.mark.parametrize(("kind", "shows"), [(Rewriting, True), (TemplateRenderer, False), (TemplateRenderer, True)])
def test_thoughts_that_a_bridge_or_the_template_keeps_are_fine(kind: type[TemplateRenderer], shows: bool) -> None:
    check_reasoning_is_kept(kind(Thinking(shows), [STOP]), "template")
