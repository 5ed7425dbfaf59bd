"""Handles of messages and responses."""

from __future__ import annotations

import pytest
from expecting import expect_error

from rllm.endpoint import carried
from rllm.endpoint.carried import CarriedMessages
from rllm_core.data.messages import Response
from rllm_core.errors import RolloutError

ASKED = [{"role": "user", "content": "1+1"}]


def test_prompt_ids_depend_only_on_its_content() -> None:
    one, other = CarriedMessages(), CarriedMessages()
    other.prompt([{"role": "user", "content": "before"}])
    assert one.prompt(ASKED).tolist() == other.prompt(ASKED).tolist()
    assert one.prompt(ASKED).tolist() != one.prompt(ASKED, [{"type": "function"}]).tolist()
    assert list(one.find_prompt(one.prompt(ASKED)).messages) == ASKED


def test_responses_that_share_a_handle_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried, "_handle", lambda content, numbers: (7,) * numbers)
    renderer = CarriedMessages()
    ids = [renderer.carry(Response(text=text, content=text), 2) for text in ("a", "b", "a")]
    assert [renderer.text(each) for each in ids] == ["a", "b", "a"]


def test_old_responses_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried, "KEPT", 2)
    renderer = CarriedMessages()
    ids = [renderer.response_ids(text) for text in ("a", "b", "c")]
    assert [renderer.text(each) for each in ids] == ["", "b", "c"]


def test_other_ids_and_messages_are_errors() -> None:
    with expect_error(RolloutError, "bad-prompt"):
        CarriedMessages().find_prompt([1, 2, 3])
    with expect_error(RolloutError, "not-json"):
        CarriedMessages().prompt([{"role": "user", "content": object()}])


def test_a_response_of_which_a_server_counts_no_token_is_kept() -> None:
    renderer = CarriedMessages()
    assert renderer.text(renderer.carry(Response(text="42", content="42"), 0)) == "42"
    assert len(renderer.carry(Response(text="", content=""), 0)) == 0
