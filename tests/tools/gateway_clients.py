"""Clients that agents use. They are strict: an answer that does not match their own types is an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import openai
from gateway_world import World


@contextmanager
def openai_client(world: World, **changes: Any) -> Iterator[openai.OpenAI]:
    """Yield a client of a new session. `changes` are fields of its `SessionSpec`."""
    session = world.open(**changes)
    with openai.OpenAI(base_url=session.openai_url(), api_key=session.key, _strict_response_validation=True) as client:
        yield client


@contextmanager
def anthropic_client(world: World, **changes: Any) -> Iterator[anthropic.Anthropic]:
    """Yield a client of a new session. `changes` are fields of its `SessionSpec`."""
    session = world.open(**changes)
    with anthropic.Anthropic(
        base_url=session.anthropic_url(), api_key=session.key, _strict_response_validation=True
    ) as client:
        yield client
