"""Pages: which a conversation gets, which it shares, which are evicted, and that nothing else is in them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rllm_local.exact_attention import blocks
from rllm_local.pages import (
    KEY_TOKENS,
    PageTable,
    Session,
    page_count,
    page_places,
    page_start,
    prefix_keys,
)

MOST = 200
"""Maximum number of tokens of a conversation in these tests."""


def _tokens(*letters: int) -> np.ndarray:
    """Return `KEY_TOKENS` tokens for each letter."""
    return np.repeat(np.array(letters, np.int32), KEY_TOKENS)


def _begin(table: PageTable, name: str, tokens: np.ndarray) -> Session:
    prefix = table.longest(name, tokens, lambda: prefix_keys(tokens))
    session = table.begin(name, prefix)
    assert table.extend(session, len(tokens))
    return session


def _store(table: PageTable, session: Session, tokens: np.ndarray) -> None:
    table.store(session, tokens, lambda: prefix_keys(tokens))


def _run(table: PageTable, name: str, tokens: np.ndarray) -> list[int]:
    """Run one request that stores its tokens, and return its pages."""
    session = _begin(table, name, tokens)
    _store(table, session, tokens)
    table.leave(name)
    return [page.number for page in session.pages]


def test_pages_are_the_blocks_of_exact_attention() -> None:
    for length in range(1, 700):
        assert page_count(length) == len(blocks(length))
        assert [page_start(index) for index in range(page_count(length))] == [each.start for each in blocks(length)]
        (index,), (place,) = (each.tolist() for each in page_places(np.array([length - 1])))
        assert page_start(index) + place == length - 1
        assert index == page_count(length) - 1


@given(
    cached=st.lists(st.integers(0, 1), max_size=9),
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=9),
    cut=st.integers(0, KEY_TOKENS - 1),
)
def test_session_continues_with_its_longest_prefix(cached: list[int], prompt: list[int], cut: int) -> None:
    table, before, ids = PageTable(99), _tokens(*cached, 7)[cut:], _tokens(*prompt)[cut:]
    _run(table, "a", before)
    common = 0
    while common < min(len(before), len(ids)) and before[common] == ids[common]:
        common += 1
    assert table.longest("a", ids, lambda: prefix_keys(ids)).length == common


conversations = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=5)


@given(cached=conversations, prompt=st.lists(st.integers(0, 1), min_size=1, max_size=9))
def test_other_sessions_find_the_longest_prefix(cached: list[list[int]], prompt: list[int]) -> None:
    table, ids = PageTable(99), _tokens(*prompt)
    for number, letters in enumerate(cached):
        _run(table, str(number), _tokens(*letters))
    longest = 0
    for letters in cached:
        same = [a == b for a, b in zip(letters, prompt, strict=False)]
        longest = max(longest, (same.index(False) if False in same else len(same)) * KEY_TOKENS)
    assert table.longest("new", ids, lambda: prefix_keys(ids)).length == longest


def test_conversations_share_whole_pages_and_copy_the_last() -> None:
    table = PageTable(9)
    first = _run(table, "a", _tokens(1, 2, 3, 4, 5))
    assert first == [1, 2, 3]
    branch = _begin(table, "b", _tokens(1, 2, 3, 4, 5, 6))
    assert [page.number for page in branch.pages] == [1, 2, 4]
    assert branch.source is not None
    assert (branch.source.number, branch.stored) == (3, 5 * KEY_TOKENS)
    _store(table, branch, _tokens(1, 2, 3, 4, 5, 6))
    assert branch.source is None
    assert _run(table, "a", _tokens(1, 2, 3, 4, 5, 7)) == first


def test_longest_idle_pages_are_evicted_last_ones_first() -> None:
    table = PageTable(4)
    _run(table, "a", _tokens(1, 2, 3))
    _run(table, "b", _tokens(4, 5, 6))
    assert _run(table, "c", _tokens(7)) == [2]
    assert table.longest("a", _tokens(1, 2, 3), list).length == 2 * KEY_TOKENS
    assert table.longest("b", _tokens(4, 5, 6), list).length == 3 * KEY_TOKENS


def test_pages_of_running_requests_are_never_evicted() -> None:
    table = PageTable(2)
    _begin(table, "a", _tokens(1))
    session = _begin(table, "b", _tokens(2))
    assert not table.extend(session, 3 * KEY_TOKENS)
    table.leave("a")
    assert table.extend(session, 3 * KEY_TOKENS)


def test_ended_conversation_keeps_pages_until_its_request_ends() -> None:
    table = PageTable(1)
    session = _begin(table, "a", _tokens(1))
    table.end("a")
    table.end("unknown")
    assert table.is_busy("a")
    assert table.available == 0
    _store(table, session, _tokens(1))
    table.leave("a")
    assert not table.is_busy("a")
    assert table.available == 1


def test_clearing_forgets_tokens_of_running_requests() -> None:
    table = PageTable(2)
    session = _begin(table, "a", _tokens(1, 2))
    table.clear()
    _store(table, session, _tokens(1, 2))
    assert (session.pages, session.stored) == ([], 0)
    assert table.available == 2
    assert table.longest("b", _tokens(1, 2), lambda: prefix_keys(_tokens(1, 2))).length == 0


class AnyOrderOfCalls(RuleBasedStateMachine):
    """In any order of calls, the pages of a request contain its tokens. A list of arrays simulates the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.table = PageTable(8)
        self.cache = np.full((9, 64), -1)
        self.running: dict[str, tuple[Session, np.ndarray]] = {}

    @rule(name=st.sampled_from("abcdef"), letters=st.lists(st.integers(0, 1), min_size=1, max_size=10))
    def begin(self, name: str, letters: list[int]) -> None:
        tokens = _tokens(*letters)[: MOST - len(self.running)]
        assert self.table.is_busy(name) == (name in self.running)
        prefix = self.table.longest(name, tokens, lambda: prefix_keys(tokens))
        if name in self.running or not self.table.fits(prefix, len(tokens)):
            return
        session = self.table.begin(name, prefix)
        assert self.table.extend(session, len(tokens))
        self.running[name] = (session, tokens)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=st.integers(0, 20))
    def compute(self, data: st.DataObject, more: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        session, tokens = self.running[name]
        tokens = np.concatenate((tokens, np.full(more, 3, np.int32)))
        if not self.table.extend(session, len(tokens)):
            return
        numbers = np.array([page.number for page in session.pages])
        if session.source is not None:
            self.cache[numbers[page_count(session.stored + 1) - 1]] = self.cache[session.source.number]
        index, place = page_places(np.arange(len(tokens)))
        new = slice(session.stored, None)
        self.cache[numbers[index[new]], place[new]] = tokens[new]
        _store(self.table, session, tokens)
        self.running[name] = (session, tokens)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        self.table.leave(name)
        del self.running[name]

    @rule(name=st.sampled_from("abcdef"))
    def end(self, name: str) -> None:
        self.table.end(name)

    @rule()
    def clear(self) -> None:
        self.table.clear()
        for session, tokens in self.running.values():
            if not self.table.extend(session, len(tokens)):
                return

    @invariant()
    def pages_contain_the_stored_tokens(self) -> None:
        for session, tokens in self.running.values():
            numbers = np.array([page.number for page in session.pages], np.int64)
            known = session.stored
            if session.source is not None:
                known = page_start(page_count(known + 1) - 1)
            index, place = page_places(np.arange(known))
            assert self.cache[numbers[index], place].tolist() == tokens[:known].tolist()

    @invariant()
    def each_page_is_available_or_read(self) -> None:
        read = {id(page) for session, _ in self.running.values() for page in [*session.pages, session.source] if page}
        assert self.table.available + len(read) == 8


TestAnyOrderOfCalls = AnyOrderOfCalls.TestCase
TestAnyOrderOfCalls.settings = settings(stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("length", [31, 32, 64, 100])
def test_cached_prompt_needs_no_page_of_another(length: int) -> None:
    """A prompt that ends with a page shares all of its pages."""
    table, ids = PageTable(20), np.arange(length, dtype=np.int32)
    first = _run(table, "a", ids)
    second = _begin(table, "b", ids)
    shared = [page.number for page in second.pages if page.number in first]
    assert len(shared) == page_count(length + 1) - 1
    assert (second.source is None) == (length in (32, 64))
