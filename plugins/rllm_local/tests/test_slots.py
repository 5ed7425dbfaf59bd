"""Slots: who is given one, who loses it, and what of a conversation may be used again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rllm_local.slots import Session, SlotTable

ids = st.lists(st.integers(0, 2), max_size=6)


@given(cached=ids, prompt=st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_reusable_prefix_leaves_one_token_to_compute(cached: list[int], prompt: list[int]) -> None:
    common = 0
    while common < min(len(cached), len(prompt)) and cached[common] == prompt[common]:
        common += 1
    session = Session(0, np.array(cached, np.int32))
    assert session.reusable(np.array(prompt, np.int32)) == min(common, len(prompt) - 1)


def test_slots_are_assigned_lowest_first_and_reused() -> None:
    table = SlotTable(3)
    assert [table.acquire(name).slot for name in "abc"] == [0, 1, 2]  # type: ignore[union-attr]
    table.release("b")
    assert table.acquire("d").slot == 1  # type: ignore[union-attr]


def test_longest_idle_conversation_is_evicted_never_busy_ones() -> None:
    table = SlotTable(2)
    first, second = table.acquire("first"), table.acquire("second")
    assert first is not None
    assert second is not None
    assert table.acquire("first") is first
    assert table.acquire("third").slot == second.slot  # type: ignore[union-attr]
    assert table.acquire("first") is first
    for name in ("first", "third"):
        table.acquire(name).busy = True  # type: ignore[union-attr]
    assert table.acquire("fourth") is None


def test_ended_conversation_keeps_slot_until_its_request_ends() -> None:
    table = SlotTable(1)
    session = table.acquire("a")
    assert session is not None
    session.busy = True
    table.release("a")
    assert table.acquire("b") is None
    table.leave("a")
    assert table.acquire("b").slot == session.slot  # type: ignore[union-attr]


def test_releasing_an_unknown_conversation_changes_nothing() -> None:
    table = SlotTable(1)
    table.release("nobody")
    assert table.acquire("a").slot == 0  # type: ignore[union-attr]
    assert table.acquire("b").slot == 0  # type: ignore[union-attr]


def test_clearing_forgets_tokens_and_keeps_slots() -> None:
    table = SlotTable(2)
    session = table.acquire("a")
    assert session is not None
    session.tokens = np.array([1, 2], np.int32)
    table.clear()
    assert table.acquire("a") is session
    assert session.tokens.size == 0


@pytest.mark.parametrize(("slots", "lost"), [(1, ["b", "c"]), (2, ["c"]), (5, [])])
def test_resize_returns_conversations_that_lost_their_slots(slots: int, lost: list[str]) -> None:
    table = SlotTable(3)
    for name in "abc":
        table.acquire(name)
    assert table.resize(slots) == lost
    assert table.acquire("a").slot == 0  # type: ignore[union-attr]


class AnyOrderOfCalls(RuleBasedStateMachine):
    """No order of calls gives two conversations one slot, or loses one."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = 3
        self.table = SlotTable(self.slots)
        self.busy: dict[str, Session] = {}

    @rule(name=st.sampled_from("abcdef"))
    def begin(self, name: str) -> None:
        session = self.table.acquire(name)
        if session is None:
            assert len(self.busy) == self.slots
        elif name in self.busy:
            assert session is self.busy[name]
        else:
            assert not session.busy
            session.busy = True
            self.busy[name] = session

    @precondition(lambda self: self.busy)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.busy)))
        self.table.leave(name)
        del self.busy[name]

    @rule(name=st.sampled_from("abcdef"))
    def end(self, name: str) -> None:
        self.table.release(name)

    @rule(slots=st.integers(1, 4))
    def resize(self, slots: int) -> None:
        self.slots = slots
        for name in self.table.resize(slots):
            self.busy.pop(name, None)

    @invariant()
    def every_busy_conversation_has_its_own_slot(self) -> None:
        taken = [session.slot for session in self.busy.values()]
        assert len(set(taken)) == len(taken)
        assert all(slot < self.slots for slot in taken)


TestAnyOrderOfCalls = AnyOrderOfCalls.TestCase
TestAnyOrderOfCalls.settings = settings(stateful_step_count=30)
