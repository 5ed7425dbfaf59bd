"""Clients that agents use. They are strict: an answer that does not match their own types is an error.

Their packages are imported late, because that takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gateway_world import World

from rllm_gateway.sessions.link import OpenedSession

if TYPE_CHECKING:
    import anthropic
    import openai


def openai_of(session: OpenedSession, role: str = "agent", **options: Any) -> openai.OpenAI:
    """Return a client of a role of a session, which is not strict."""
    import openai

    return openai.OpenAI(base_url=session.openai_url(role), api_key=session.key, **options)


def anthropic_of(session: OpenedSession, role: str = "agent", **options: Any) -> anthropic.Anthropic:
    """Return a client of a role of a session, which is not strict."""
    import anthropic

    return anthropic.Anthropic(base_url=session.anthropic_url(role), api_key=session.key, **options)


@contextmanager
def openai_client(world: World, **changes: Any) -> Iterator[openai.OpenAI]:
    """Yield a client of a new session. `changes` are fields of its `SessionSpec`."""
    with openai_of(world.open(**changes), _strict_response_validation=True) as client:
        yield client


@contextmanager
def anthropic_client(world: World, **changes: Any) -> Iterator[anthropic.Anthropic]:
    """Yield a client of a new session. `changes` are fields of its `SessionSpec`."""
    with anthropic_of(world.open(**changes), _strict_response_validation=True) as client:
        yield client
