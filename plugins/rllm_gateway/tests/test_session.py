"""Where agents reach their session."""

from __future__ import annotations

from rllm_gateway.live_session import LiveSession
from rllm_gateway.session import OpenedSession, SessionSpec

OPENED = OpenedSession(id="sum-1:0", key="k", url="http://127.0.0.1:4000/s/sum-1:0")


def test_the_url_of_openai_clients_names_session_and_role() -> None:
    assert OPENED.openai_url() == "http://127.0.0.1:4000/s/sum-1:0/agent/v1"


def test_clients_of_anthropic_add_the_version_themselves() -> None:
    assert OPENED.anthropic_url("judge") == "http://127.0.0.1:4000/s/sum-1:0/judge"


def test_choices_that_are_asked_again_are_in_the_same_order() -> None:
    session = LiveSession(SessionSpec(id="s", run="r", rollout="t:0", max_tokens=9), "")
    first = [session.take_sibling(b"prompt") for _ in range(3)]
    session.lose(b"prompt", first)
    assert [session.take_sibling(b"prompt") for _ in range(4)] == [*first, 3]
