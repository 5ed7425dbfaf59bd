"""Pages of cached keys and values: the tokens in each, the requests that read it, and the pages of a prompt's prefix.

A page contains the positions of one block of `exact_attention.blocks`. Conversations with a common prefix share its
pages. A page receives tokens only from the session that allocated it, so nothing changes for the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rllm_local.exact_attention import BLOCK

HALF = BLOCK // 2
KEY_TOKENS = 16
"""Tokens per key. Other conversations find prefixes of at least this length. Divides the number of tokens of a page."""
NOTHING = np.empty(0, np.int32)


def page_count(length: int) -> int:
    """Return the number of pages with the first `length` positions."""
    return 1 if length <= HALF else (length - 1) // BLOCK + 2


def page_start(index: int) -> int:
    """Return the first position of a conversation's page."""
    return index * HALF if index < 2 else (index - 1) * BLOCK


def page_places(positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the index of each position's page in its conversation, and its place in the page."""
    index = np.where(positions < HALF, 0, positions // BLOCK + 1)
    return index, np.where(positions < BLOCK, positions % HALF, positions % BLOCK)


def prefix_keys(tokens: NDArray[np.int32], first: Sequence[int] = ()) -> list[int]:
    """Return a key for each `KEY_TOKENS` tokens of the prefix. `first` are its first keys."""
    keys = list(first)
    for start in range(len(keys) * KEY_TOKENS, len(tokens) - KEY_TOKENS + 1, KEY_TOKENS):
        keys.append(hash((keys[-1] if keys else 0, tokens[start : start + KEY_TOKENS].tobytes())))
    return keys


def leading(keys: Sequence[int], among: Collection[int]) -> int:
    """Return the number of first keys that are in `among` without a gap."""
    count = 0
    while count < len(keys) and keys[count] in among:
        count += 1
    return count


@dataclass(eq=False)
class Page:
    """A page of the cache."""

    number: int
    """Place in the cache. 0 after the page was evicted."""
    readers: int = 1
    """Number of running requests that read it. A page without readers may be evicted."""
    tokens: NDArray[np.int32] = field(default_factory=lambda: NOTHING)
    """The tokens whose keys and values are in the page, (n,)."""
    keys: list[int] = field(default_factory=list)
    """Keys under which other conversations find the page."""
    following: Page | None = None
    """The next page of the conversation that stored a next page last."""


class Prefix(NamedTuple):
    """Pages with the first `length` tokens of a prompt. A prompt may use the last of them partly."""

    pages: Sequence[Page]
    length: int

    @property
    def n_whole(self) -> int:
        """Number of pages that the prompt uses completely."""
        return page_count(self.length + 1) - 1


@dataclass(eq=False)
class Session:
    """A conversation and its pages."""

    pages: list[Page] = field(default_factory=list)
    stored: int = 0
    """Number of tokens whose keys and values are in the pages, or will be after `source` is copied."""
    source: Page | None = None
    """Page to copy to the last page with stored tokens before the next pass. None if nothing must be copied."""
    filed: int = 0
    """Number of keys of the stored tokens that are in the index."""
    busy: bool = False
    """True while a request of this conversation runs."""
    ended: bool = False
    """True if the conversation must be removed when its request ends."""


class PageTable:
    """Assigns pages, lowest first, and finds the pages of a prompt's prefix.

    If no page is free, it evicts the page that has been without readers for the longest time.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # Insertion order is order of last use.
        self._sessions: dict[str, Session] = {}
        self.clear()

    def clear(self) -> None:
        """Remove all cached tokens, for example after a change of weights. Running requests have no pages then."""
        for session in self._sessions.values():
            session.pages, session.stored, session.source, session.filed = [], 0, None, 0
        self._free: list[int] = []
        self._unused = 1
        """Lowest number that was never assigned. Page 0 receives the states of padding."""
        self._idle: dict[Page, None] = {}
        """Pages without readers. Insertion order is order of eviction."""
        self._index: dict[int, Page] = {}

    @property
    def available(self) -> int:
        """Number of pages that are free or can be evicted."""
        return len(self._free) + self.limit + 1 - self._unused + len(self._idle)

    def is_busy(self, name: str) -> bool:
        """Return True if a request of the conversation runs."""
        session = self._sessions.get(name)
        return session is not None and session.busy

    def longest(self, name: str, tokens: NDArray[np.int32], keys: Callable[[], Sequence[int]]) -> Prefix:
        """Return the longest cached prefix of a prompt: of its conversation, or by `keys` of other conversations."""
        session = self._sessions.get(name)
        own = Prefix(session.pages, _common(session.pages, tokens)) if session is not None else Prefix((), 0)
        if len(tokens) < own.length + KEY_TOKENS:
            return own
        prompt_keys = keys()
        found = leading(prompt_keys, self._index)
        if found * KEY_TOKENS < own.length + KEY_TOKENS:
            # A copy of a few more tokens costs more than computing them.
            return own
        ends = (page_start(index + 1) // KEY_TOKENS for index in range(page_count(found * KEY_TOKENS)))
        pages = [self._index[prompt_keys[min(end, found) - 1]] for end in ends]
        if pages[-1].following is not None:
            # It can contain a few more tokens than its keys show.
            pages.append(pages[-1].following)
        return Prefix(pages, _common(pages, tokens))

    def fits(self, prefix: Prefix, length: int) -> bool:
        """Return True if enough pages are available for a request with `length` tokens and this cached prefix."""
        used = prefix.pages[: page_count(prefix.length)] if prefix.length else ()
        idle = sum(page in self._idle for page in used)
        return page_count(length) - prefix.n_whole <= self.available - idle

    def begin(self, name: str, prefix: Prefix) -> Session:
        """Start a request of a conversation with a cached prefix, and return its session."""
        session = self._sessions.pop(name, None) or Session()
        self._sessions[name] = session
        while len(self._sessions) > self.limit:  # because an idle conversation of use has a page
            idle = next(
                (each for each, other in self._sessions.items() if not other.busy and other is not session), None
            )
            if idle is None:
                break
            del self._sessions[idle]
        pages, whole = list(prefix.pages[: prefix.n_whole]), prefix.n_whole
        session.source = None
        if prefix.length > page_start(whole):
            last = prefix.pages[whole]
            if prefix.pages is session.pages and page_start(whole) + len(last.tokens) == prefix.length:
                pages.append(last)
            else:
                session.source = last
                self._hold(last)
        for page in pages:
            self._hold(page)
        session.pages, session.stored, session.busy = pages, prefix.length, True
        session.filed = prefix.length // KEY_TOKENS
        return session

    def extend(self, session: Session, length: int) -> bool:
        """Give a running request pages for `length` tokens. Return False if too few are available."""
        while len(session.pages) < page_count(length):
            page = self._allocate()
            if page is None:
                return False
            session.pages.append(page)
        return True

    def store(self, session: Session, tokens: NDArray[np.int32], keys: Callable[[], Sequence[int]]) -> None:
        """Record that the keys and values of `tokens` are in the pages. `keys` returns their `prefix_keys`."""
        if not session.pages:
            return  # the pages were cleared during the pass
        if session.source is not None:
            self._release(session.source)
            session.source = None
        for index in range(page_count(session.stored + 1) - 1, len(session.pages)):
            session.pages[index].tokens = tokens[page_start(index) : page_start(index + 1)]
            if index:
                session.pages[index - 1].following = session.pages[index]
        session.stored = len(tokens)
        if len(tokens) < (session.filed + 1) * KEY_TOKENS:
            return
        for place, key in enumerate(keys()[session.filed :], session.filed):
            page = session.pages[page_count((place + 1) * KEY_TOKENS) - 1]
            if self._index.setdefault(key, page) is page:
                page.keys.append(key)
            session.filed = place + 1

    def leave(self, name: str) -> None:
        """End the conversation's request. Its pages stay until they are evicted, the last ones first."""
        session = self._sessions[name]
        if session.source is not None:
            self._release(session.source)
            session.source = None
        for page in reversed(session.pages):
            self._release(page)
        session.pages = [page for page in session.pages if len(page.tokens)]
        session.busy = False
        if session.ended:
            del self._sessions[name]

    def end(self, name: str) -> None:
        """Forget a conversation. If its request is running, forget it when the request ends."""
        session = self._sessions.get(name)
        if session is not None and session.busy:
            session.ended = True
        elif session is not None:
            del self._sessions[name]

    def _hold(self, page: Page) -> None:
        self._idle.pop(page, None)
        page.readers += 1

    def _release(self, page: Page) -> None:
        page.readers -= 1
        if page.readers:
            return
        if len(page.tokens):
            self._idle[page] = None
        else:
            heapq.heappush(self._free, page.number)

    def _allocate(self) -> Page | None:
        if self._free:
            return Page(heapq.heappop(self._free))
        if self._unused <= self.limit:
            self._unused += 1
            return Page(self._unused - 1)
        if not self._idle:
            return None
        evicted = next(iter(self._idle))
        del self._idle[evicted]
        for key in evicted.keys:
            del self._index[key]
        evicted.following = None
        number, evicted.number = evicted.number, 0
        return Page(number)


def _common(pages: Sequence[Page], tokens: NDArray[np.int32]) -> int:
    """Return the number of first tokens whose keys and values are in the pages."""
    count = 0
    for index, page in enumerate(pages):
        expected = tokens[count : count + len(page.tokens)]
        differs = page.tokens[: len(expected)] != expected
        same = int(differs.argmax()) if differs.any() else len(expected)
        count += same if page.number else 0
        if count < page_start(index + 1):
            break
    return count
