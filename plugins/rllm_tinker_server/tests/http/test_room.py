"""Whoever has stopped working makes room for others."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import check_values

from .conftest import Server, Start


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The clock of a server's sessions: ``clock(server)`` returns its one moment, to be moved."""

    def make_clock(server: Server) -> list[float]:
        now = [1000.0]
        monkeypatch.setattr(server.running.service.sessions, "_clock", lambda: now[0])
        return now

    return make_clock


def refusal(server: Server, session_id: str) -> str:
    content = {"session_id": session_id, "model_seq_id": 9, "base_model": "fake", "lora_config": {"rank": 4}}
    response = server.post("create_model", **content)
    assert response.status_code == 400
    return str(response.json()["detail"])


def test_a_program_that_ended_without_closing_gives_its_models_to_the_next(start: Start, clock: Any) -> None:
    server = start(max_models=2, heartbeat_missed=60.0)
    now = clock(server)
    ended, alive = server.session(), server.session()
    lost, kept = server.model(ended), server.model(alive)
    now[0] += 61.0
    server.post("session_heartbeat", session_id=alive)
    new = server.model(server.session())
    assert server.host.models.keys() == {kept, new}
    late = server.post("optim_step", model_id=lost, seq_id=1, adam_params={})
    assert late.status_code == 410
    check_values(late.json()["detail"], "heartbeat", "60 s")


def test_a_program_whose_heart_beats_gives_nothing(start: Start, clock: Any) -> None:
    server = start(max_models=1, heartbeat_missed=60.0)
    now = clock(server)
    alive = server.session()
    model_id = server.model(alive)
    now[0] += 59.0
    assert "1 model" in refusal(server, server.session())
    assert model_id in server.host.models


def test_the_program_that_is_silent_for_longest_goes_first_and_no_more_than_needed(start: Start, clock: Any) -> None:
    server = start(max_models=2, heartbeat_missed=60.0)
    now = clock(server)
    oldest = server.model(server.session())
    now[0] += 1.0
    older = server.model(server.session())
    now[0] += 100.0
    new = server.model(server.session())
    assert server.host.models.keys() == {older, new}
    assert oldest not in server.host.models


def test_what_is_computed_for_a_silent_program_is_not_taken_away(start: Start, clock: Any) -> None:
    server = start(max_models=1, heartbeat_missed=60.0)
    now = clock(server)
    session_id = server.session()
    model_id = server.model(session_id)
    # The second request waits for the first, which has not come.
    server.step(model_id, 2)
    now[0] += 61.0
    assert "1 model" in refusal(server, server.session())


def test_sessions_without_a_heartbeat_make_room_for_new_ones(start: Start, clock: Any) -> None:
    server = start(max_sessions=1, heartbeat_missed=60.0)
    now = clock(server)
    server.model(server.session())
    now[0] += 61.0
    assert server.session()
