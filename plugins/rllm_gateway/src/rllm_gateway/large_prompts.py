"""Long prompts: refused where they cannot fit, before they are rendered, and else rendered beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rllm_core.contracts.renderer import Renderer
from rllm_gateway.asked import Asked
from rllm_gateway.digests import REASONING
from rllm_gateway.live_session import LiveSession
from rllm_gateway.prompting import Prompt, prompt_of
from rllm_gateway.refusals import invalid
from rllm_gateway.tree import Place

CHARACTERS_OF_A_TOKEN = 64
"""More than a token of any text has on average; text has about 4."""
LARGE = 100_000
"""Characters from which rendering would hold up other requests."""
_BESIDE = ThreadPoolExecutor(1, "rllm-gateway-rendering")
"""One at a time: each takes memory."""


def refuse_too_long(session: LiveSession, asked: Asked) -> None:
    """Raise RefusedError for a prompt that has more tokens than the session takes, whatever they are."""
    most = session.spec.max_prompt_length
    if most is None:
        return
    characters = characters_of(asked)
    if characters > most * CHARACTERS_OF_A_TOKEN:
        session.too_long += 1
        raise invalid(
            f"a prompt of {characters} characters; this run takes {most} tokens at most",
            "messages",
            "context_length_exceeded",
        )


async def rendered(place: Place, asked: Asked, renderer: Renderer, accumulate_reasoning: bool) -> Prompt:
    """As `prompt_of`; other requests are answered meanwhile where it is large."""
    if characters_of(asked) <= LARGE:
        return prompt_of(place, asked, renderer, accumulate_reasoning)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_BESIDE, prompt_of, place, asked, renderer, accumulate_reasoning)


def characters_of(asked: Asked) -> int:
    """Characters of messages and tools; thoughts of earlier turns are left out, as templates do."""
    return _characters([asked.messages, asked.tools])


def _characters(value: Any) -> int:
    match value:
        case str():
            return len(value)
        case Mapping():
            return sum(_characters(each) for key, each in value.items() if key != REASONING)
        case Sequence():
            return sum(map(_characters, value))
        case _:
            return 0
