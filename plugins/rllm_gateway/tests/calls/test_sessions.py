"""Sessions as they are read back: whole prompts, summaries, pruning."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError
from rllm_gateway.calls import CallReader, CallStore, Row, StoreError

from .made_rows import call, end, reward, session


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


def test_a_response_that_is_no_message_is_left_out(store: CallStore) -> None:
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


def test_a_closed_reader_reads_nothing(path: Path) -> None:
    CallStore.open(path).close()
    reader = CallReader.open(path)
    reader.close()

    with pytest.raises(StoreError, match="closed database"):
        reader.sessions()


def test_nobody_else_reads_a_store(tmp_path: Path) -> None:
    path = tmp_path / "directory" / "calls.db"
    with CallStore.open(path) as store:
        add(store, session())
        modes = {file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert (path.parent.stat().st_mode & 0o777, modes) == (0o700, {0o600})
