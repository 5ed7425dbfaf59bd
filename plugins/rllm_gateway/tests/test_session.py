"""Numbers of the calls of one prompt."""

from __future__ import annotations

from rllm_gateway.link import SessionSpec
from rllm_gateway.live_session import LiveSession


def test_choices_that_are_asked_again_are_in_the_same_order() -> None:
    session = LiveSession(SessionSpec(id="s", run="r", rollout="t:0", max_tokens=9), "")
    first = [session.take_sibling(b"prompt") for _ in range(3)]
    session.lose(b"prompt", first)
    assert [session.take_sibling(b"prompt") for _ in range(4)] == [*first, 3]
