"""Rows and sessions read from a store equal the written rows. Invalid rows are rejected and leave nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expecting import expect_error
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from rllm_core.data.version_spans import VersionSpan
from rllm_core.errors import ConfigError
from rllm_gateway.calls import CallReader, CallStore, DeliveryRow, Row, StoreError

from .made_rows import call, end, reward, session

# Any text, halves of surrogate pairs and NUL included, where it is JSON data; ids are text that can be encoded.
TEXTS = st.text(st.characters())
NAMES = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
)
OBJECTS = st.dictionaries(TEXTS, JSON, max_size=4)
TIMES = st.floats(allow_nan=False, allow_infinity=False)
IDS = arrays(np.int32, st.integers(0, 20))


@st.composite
def tokens(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a call about its tokens."""
    response = draw(IDS)
    return {
        "prompt_digest": draw(NAMES),
        "new_ids": draw(IDS),
        "response_ids": response,
        "logprobs": draw(arrays(np.float32, len(response), elements=st.floats(width=32))),
        "weight_version": 0,
        "version_spans": tuple(VersionSpan(version, 1) for version in range(len(response))),
        "finish_reason": draw(st.sampled_from(["stop", "length"])),
        "started": draw(TIMES),
        "seconds": draw(TIMES),
        "parameters": draw(OBJECTS),
    }


def as_data(row: Any) -> Any:
    """A row with its arrays as bytes: NaN equals NaN."""
    if isinstance(row, np.ndarray):
        return (row.dtype, row.tobytes())
    if dataclasses.is_dataclass(row):
        return {name: as_data(value) for name, value in vars(row).items()}
    return row


def write(path: Path, *rows: Row) -> None:
    async def main() -> None:
        with CallStore.open(path) as store:
            await asyncio.gather(*(store.add(row) for row in rows))

    asyncio.run(main())


SHARED = "calls of all examples"
_examples = count()


@pytest.mark.long
@given(data=st.data())
def test_rows_come_out_as_they_went_in(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    # One store: each that is made is synced to disk.
    path = tmp_path_factory.getbasetemp() / SHARED
    id = f"{next(_examples)}.{data.draw(NAMES)}"
    opened = session(
        id,
        run=data.draw(NAMES),
        rollout=data.draw(TEXTS),
        retry=data.draw(st.integers()),
        metadata=data.draw(OBJECTS),
        key_hash=data.draw(NAMES),
        opened=data.draw(TIMES),
    )
    stored = call(
        data.draw(NAMES),
        id,
        role=data.draw(TEXTS),
        parent=data.draw(st.none() | NAMES),
        kept_tokens=data.draw(st.none() | st.integers(0)),
        kept_messages=data.draw(st.none() | st.integers(0)),
        **data.draw(tokens()),
        messages=data.draw(st.lists(JSON, max_size=3)),
        response=data.draw(JSON),
        sent=data.draw(OBJECTS),
        outcomes=data.draw(st.dictionaries(TEXTS, TEXTS, max_size=3)),
    )
    given_reward = reward(data.draw(st.floats(allow_nan=False)), id, data.draw(TEXTS))
    ended = end(id, data.draw(TEXTS))
    write(path, opened, stored, given_reward, ended)
    with CallReader.open(path) as reader:
        found = reader.session(id)
        reader.require_whole()

    assert (found.session, found.rewards, found.end) == (opened, (given_reward,), ended)
    assert [as_data(row) for row in found.calls] == [as_data(stored)]


def test_a_call_has_a_log_prob_per_token() -> None:
    with pytest.raises(ValueError, match=r"3 .* 2 "):
        call(logprobs=np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([VersionSpan(3, 1)], r"\[1\] tokens.* 2$"),
        ([VersionSpan(4, 2)], "weight_version is 3.* 4$"),
    ],
)
def test_version_spans_of_a_call_cover_its_response(spans: list[VersionSpan], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(version_spans=tuple(spans))


def test_large_integers_and_minus_zero_are_stored(path: Path) -> None:
    write(path, session(opened=-0.0, metadata={"n": 10**999}))
    with CallReader.open(path) as reader:
        found = reader.session("s").session
        reader.require_whole()
    assert (found.opened, found.metadata) == (0.0, {"n": 10**999})


UNSTORABLE = {
    "no JSON": call(sent={"stop": object()}),
    "bytes": call(messages=[b"text"]),
    "too many digits": call(sent={"n": 10**5000}),
    "other dtype": call(new_ids=np.arange(3)),
    "other shape": call(new_ids=np.zeros((2, 2), np.int32)),
    "no text": call(id=7),  # type: ignore[arg-type]
    "half a pair in an id": call(id="\ud800"),
    "endless": session("other", opened=10**400),
    "time that is no number": session("other", opened=float("nan")),
    "no row": object(),
}


@pytest.mark.parametrize("row", UNSTORABLE.values(), ids=UNSTORABLE)
def test_what_cannot_be_stored_is_refused(store: CallStore, row: Any) -> None:
    outcomes = asyncio.run(_outcomes(store, session(), row))

    assert outcomes == [None, "store-failed"]
    assert [summary.calls for summary in store.sessions()] == [0]


DUPLICATE = "duplicate-row"


async def _outcomes(store: CallStore, *rows: Row) -> list[str | None]:
    """Added together, so that they may share a commit."""
    results = await asyncio.gather(*(store.add(row) for row in rows), return_exceptions=True)
    return [result.code if isinstance(result, StoreError) else None for result in results]


def test_a_rejected_row_does_not_change_others(store: CallStore) -> None:
    rows = (session(), call("a"), call("a"), call("b", session="nobody's"), call("c"), session(), end(), end())

    outcomes = asyncio.run(_outcomes(store, *rows))

    assert outcomes == [None, None, DUPLICATE, "unknown-session", None, DUPLICATE, None, DUPLICATE]
    assert [row.id for row in store.calls("s")] == ["a", "c"]


def test_a_session_that_has_ended_takes_nothing(store: CallStore) -> None:
    rows = (session(), call("a"), reward(), end(), call("b"), reward(0.0), DeliveryRow(session="s", call="a", at=1.0))

    outcomes = asyncio.run(_outcomes(store, *rows))

    assert outcomes == [None, None, None, None, "session-ended", "session-ended", None]
    assert [row.delivered for row in store.calls("s")] == [True]
    assert store.session("s").rewards == (reward(),)


def test_a_delivery_is_noted_without_waiting(path: Path) -> None:
    async def main() -> None:
        with CallStore.open(path) as store:
            await asyncio.gather(*(store.add(row) for row in (session(), call("a"), call("b"))))
            for known in ("a", "a", "nobody's"):
                store.note(DeliveryRow(session="s", call=known, at=1.0))

    asyncio.run(main())
    with CallReader.open(path) as reader:
        assert {row.id: row.delivered for row in reader.calls("s")} == {"a": True, "b": False}


def test_all_rows_are_stored_when_the_store_closes(path: Path) -> None:
    async def main() -> list[BaseException | None]:
        store = CallStore.open(path)
        adding = [asyncio.ensure_future(store.add(row)) for row in (session(), *(call(str(i)) for i in range(200)))]
        await asyncio.sleep(0)
        store.close()
        store.close()
        with pytest.raises(StoreError, match="is closed"):
            await store.add(session("late"))
        return await asyncio.gather(*adding, return_exceptions=True)

    assert asyncio.run(main()) == [None] * 201
    with CallReader.open(path) as reader:
        assert len(reader.calls("s")) == 200


def test_waiters_that_are_gone_block_none(store: CallStore) -> None:
    async def main() -> None:
        waiting = asyncio.ensure_future(store.add(session()))
        await asyncio.sleep(0)
        waiting.cancel()
        closed = asyncio.new_event_loop()
        store._writer.submit((), closed.create_future())
        closed.close()
        await store.add(session("t"))

    asyncio.run(main())
    assert "t" in [summary.session.id for summary in store.sessions()]


def test_commits_are_on_disk_when_they_are_acknowledged(store: CallStore) -> None:
    """2 is FULL: SQLite syncs the log with every commit."""
    assert store._writer._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert store._writer._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_parameters_that_calls_share_are_stored_once(store: CallStore) -> None:
    tools = {"tools": [{"name": "bash", "description": "x" * 100_000}]}

    asyncio.run(_outcomes(store, session(), *(call(str(i), sent=tools) for i in range(30))))

    assert {row.sent["tools"][0]["name"] for row in store.calls("s")} == {"bash"}
    assert sum(file.stat().st_size for file in store._path.parent.iterdir()) < 1_000_000


def test_rows_that_wait_together_share_a_commit(store: CallStore) -> None:
    """A sync per row is what a disk does a few hundred times a second."""
    commits: list[str] = []
    writer = store._writer
    writer._connection.set_trace_callback(lambda said: commits.append(said) if said == "COMMIT" else None)
    held, go = threading.Event(), threading.Event()
    commit = writer._commit

    def slow(group: Any) -> Any:
        held.set()
        go.wait()
        return commit(group)

    async def main() -> None:
        first = asyncio.ensure_future(store.add(session()))
        await asyncio.to_thread(held.wait)
        rest = [asyncio.ensure_future(store.add(call(str(number)))) for number in range(100)]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(first, *rest)

    writer._commit = slow  # type: ignore[method-assign]
    asyncio.run(main())
    assert len(store.calls("s")) == 100
    assert len(commits) == 2


def add(store: CallStore, *rows: Row) -> None:
    async def main() -> None:
        await asyncio.gather(*map(store.add, rows))

    asyncio.run(main())


def ids(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, np.int32)


def make_message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


ROOT = call(
    "root",
    new_ids=ids(1, 2),
    response_ids=ids(3, 4),
    messages=[make_message("system", "play"), make_message("user", "?")],
    response=make_message("assistant", "7"),
)
CHILD = call("child", parent="root", new_ids=ids(5), messages=[make_message("user", "lower")])
BRANCH = call(
    "branch",
    parent="root",
    kept_tokens=3,
    kept_messages=1,
    new_ids=ids(9, 9),
    messages=[make_message("user", "again")],
)


def test_a_prompt_is_what_its_ancestors_make_up(store: CallStore) -> None:
    grandchild = call("grandchild", parent="child", new_ids=ids(6), messages=[make_message("user", "higher")])
    add(store, session(), ROOT, CHILD, grandchild)

    stored = store.session("s")

    assert stored.prompt_ids("root").tolist() == [1, 2]
    assert stored.prompt_ids("child").tolist() == [1, 2, 3, 4, 5]
    assert stored.prompt_ids("grandchild").tolist() == [1, 2, 3, 4, 5, 100, 101, 6]
    assert stored.prompt_ids("grandchild").dtype == np.int32
    assert [message["content"] for message in stored.messages("grandchild")] == (
        ["play", "?", "7", "lower", "7", "higher"]
    )


def test_a_prompt_that_leaves_its_ancestors_says_where(store: CallStore) -> None:
    below = call("below", parent="branch", new_ids=ids(8), messages=[])
    add(store, session(), ROOT, BRANCH, below)

    stored = store.session("s")

    assert stored.prompt_ids("branch").tolist() == [1, 2, 3, 9, 9]
    assert stored.prompt_ids("below").tolist() == [1, 2, 3, 9, 9, 100, 101, 8]
    assert stored.messages("branch") == [make_message("system", "play"), make_message("user", "again")]


def test_response_that_is_no_message_is_omitted(store: CallStore) -> None:
    add(store, session(), call("root", response=None), CHILD)

    assert store.session("s").messages("child") == [make_message("user", "lower?"), make_message("user", "lower")]


def test_missing_calls_and_sessions_are_named(store: CallStore) -> None:
    add(store, session(), CHILD)

    with expect_error(StoreError, "damaged-store", "'root'", "'child'"):
        store.session("s").prompt_ids("child")
    with expect_error(ConfigError, "unknown-session", "'nobody'"):
        store.session("nobody")


def test_sessions_are_found_by_run(store: CallStore) -> None:
    add(store, session("a"), session("b", run="other"), session("c"), call(session="c"), end("a"))

    assert [summary.session.id for summary in store.sessions()] == ["a", "b", "c"]
    assert [(summary.session.id, summary.calls, summary.end) for summary in store.sessions("demo")] == [
        ("a", 0, end("a")),
        ("c", 1, None),
    ]


@pytest.mark.parametrize(
    ("chosen", "left"),
    [({"run": "demo"}, ["b"]), ({"before": 150.0}, ["c"]), ({"run": "demo", "before": 150.0}, ["b", "c"])],
)
def test_sessions_are_pruned_by_run_and_by_time(
    store: CallStore, chosen: dict[str, float | str], left: list[str]
) -> None:
    add(store, session("a"), session("b", run="other"), session("c", opened=200.0))
    add(store, *(call(session=name) for name in "abc"), reward(session="a"), end("a"))

    assert store.prune(**chosen) == 3 - len(left)  # type: ignore[arg-type]

    assert [summary.session.id for summary in store.sessions()] == left
    assert [store.calls(name)[0].sent for name in left] == [call().sent] * len(left)
    store.require_whole()


def test_pruning_needs_a_selection_and_ends_sessions(store: CallStore) -> None:
    with pytest.raises(ValueError, match="select the sessions"):
        store.prune()
    add(store, session())
    store.prune(run="demo")
    with pytest.raises(StoreError):
        add(store, call())
    assert store.sessions() == []


def test_nobody_else_reads_a_store(tmp_path: Path) -> None:
    path = tmp_path / "directory" / "calls.db"
    with CallStore.open(path) as store:
        add(store, session())
        modes = {file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert (path.parent.stat().st_mode & 0o777, modes) == (0o700, {0o600})
