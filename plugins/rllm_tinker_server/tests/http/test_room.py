"""Whoever has stopped working makes room for others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from expecting import check_values

from .conftest import Server, Start

Begin = Callable[..., tuple[Server, list[float]]]


@pytest.fixture
def begin(start: Start, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Start a server that misses heartbeats after 60 s. Return it with the time of its sessions, to be changed."""

    def begin(**limits: int) -> tuple[Server, list[float]]:
        server, now = start(heartbeat_missed=60.0, **limits), [1000.0]
        monkeypatch.setattr(server.running.service.sessions, "_clock", lambda: now[0])
        return server, now

    return begin


def refusal(server: Server, session_id: str) -> str:
    content = {"session_id": session_id, "model_seq_id": 9, "base_model": "fake", "lora_config": {"rank": 4}}
    response = server.post("create_model", **content)
    assert response.status_code == 400
    return str(response.json()["detail"])


def test_crashed_programs_models_make_room_for_the_next(begin: Begin) -> None:
    server, now = begin(max_models=2)
    ended, alive = server.session(), server.session()
    lost, kept = server.model(ended), server.model(alive)
    now[0] += 61.0
    server.post("session_heartbeat", session_id=alive)
    new = server.model(server.session())
    assert server.host.models.keys() == {kept, new}
    late = server.post("optim_step", model_id=lost, seq_id=1, adam_params={})
    assert late.status_code == 410
    check_values(late.json()["detail"], "heartbeat", "60 s")


def test_a_program_whose_heart_beats_gives_nothing(begin: Begin) -> None:
    server, now = begin(max_models=1)
    alive = server.session()
    model_id = server.model(alive)
    now[0] += 59.0
    assert "1 model" in refusal(server, server.session())
    assert model_id in server.host.models


def test_longest_silent_program_is_evicted_first(begin: Begin) -> None:
    server, now = begin(max_models=2)
    oldest = server.model(server.session())
    now[0] += 1.0
    older = server.model(server.session())
    now[0] += 100.0
    new = server.model(server.session())
    assert server.host.models.keys() == {older, new}
    assert oldest not in server.host.models


def test_silent_program_with_running_request_is_not_evicted(begin: Begin) -> None:
    server, now = begin(max_models=1)
    session_id = server.session()
    model_id = server.model(session_id)
    # The second request waits for the first, which has not come.
    server.step(model_id, 2)
    now[0] += 61.0
    assert "1 model" in refusal(server, server.session())


def test_sessions_without_heartbeat_make_room_for_new_ones(begin: Begin) -> None:
    server, now = begin(max_sessions=1)
    server.model(server.session())
    now[0] += 61.0
    assert server.session()
