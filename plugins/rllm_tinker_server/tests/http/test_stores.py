"""Stored data of the server: results, snapshots, and checkpoints on disk."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rllm_tinker_server.checkpoints import Checkpoint, Checkpoints, TinkerPath
from rllm_tinker_server.limits import TinkerLimits
from rllm_tinker_server.messages import LoraSpec, RequestError
from rllm_tinker_server.owners import Owner
from rllm_tinker_server.request_errors import GoneError, NotFoundError, ServerError
from rllm_tinker_server.service import Snapshots
from rllm_tinker_server.turns import Answer, Futures

ME, OTHER = Owner("me"), Owner("other")
PATH = TinkerPath("a-b:train:0", "weights", "one")


def answer(size: int) -> Answer:
    return Answer(b"x" * size, "application/json")


def checkpoint(path: TinkerPath = PATH, expires: float | None = None) -> Checkpoint:
    return Checkpoint(path=path, base_model="fake", spec=LoraSpec(rank=4), created=0.0, expires=expires, owner="me")


def write(text: str) -> Callable[[Path], None]:
    def save(directory: Path) -> None:
        (directory / "weights").write_text(text)

    return save


def test_retrieved_results_are_dropped_first_pending_never() -> None:
    async def scenario() -> None:
        futures = Futures(TinkerLimits(max_result_bytes=25))
        for name in ("fetched", "kept", "pending"):
            futures.open(name, ME)
        futures.finish("kept", answer(10))
        futures.finish("fetched", answer(10))
        await futures.wait("fetched", ME)
        futures.open("latest", ME)
        futures.finish("latest", answer(10))
        assert [futures.knows(name, ME) for name in ("fetched", "kept", "pending", "latest")] == [
            False,
            True,
            True,
            True,
        ]
        futures.open("large", ME)
        futures.finish("large", answer(100))
        assert await futures.wait("large", ME) is not None
        assert not futures.knows("kept", ME)
        assert futures.pending == 1

    asyncio.run(scenario())


def test_results_grow_old() -> None:
    async def scenario() -> None:
        now = [0.0]
        futures = Futures(TinkerLimits(keep_retrieved=60, keep_unretrieved=3600), clock=lambda: now[0])
        for name in ("fetched", "unfetched"):
            futures.open(name, ME)
            futures.finish(name, answer(1))
        await futures.wait("fetched", ME)
        now[0] = 61.0
        futures.sweep()
        assert [futures.knows(name, ME) for name in ("fetched", "unfetched")] == [False, True]
        now[0] = 3601.0
        futures.sweep()
        with pytest.raises(GoneError):
            await futures.wait("unfetched", ME)

    asyncio.run(scenario())


def test_result_reaches_both_waiting_requests() -> None:
    async def scenario() -> None:
        futures = Futures(TinkerLimits())
        futures.open("one", ME)
        waiting = [asyncio.create_task(futures.wait("one", ME)) for _ in range(2)]
        await asyncio.sleep(0)
        futures.finish("one", answer(1))
        assert await asyncio.gather(*waiting) == [answer(1)] * 2

    asyncio.run(scenario())


def test_weights_on_disk_are_evicted_before_older_ones() -> None:
    left: list[str] = []
    snapshots = Snapshots(3, left.append)
    for name in ("one", "two"):
        snapshots.put(name, name, owner="me", on_disk=False)
    snapshots.put("named", "named", owner="me", on_disk=True)
    snapshots.get("one")
    snapshots.put("three", "three", owner="me", on_disk=False)
    assert left == ["named"]
    snapshots.put("four", "four", owner="me", on_disk=False)
    assert left == ["named", "two"]
    snapshots.put("four", "newer", owner="me", on_disk=False)
    assert left == ["named", "two", "four"]
    assert len(snapshots) == 3


def test_checkpoint_is_found_by_a_second_server(tmp_path: Path) -> None:
    Checkpoints(tmp_path).write(checkpoint(), write("text"), overwrite=False)
    found = Checkpoints(tmp_path).get(PATH, ME)
    assert (found.path, found.spec, found.size) == (PATH, LoraSpec(rank=4), 4)
    assert Checkpoints(tmp_path).model_ids() == ["a-b:train:0"]


def test_a_checkpoint_expires(tmp_path: Path) -> None:
    now = [0.0]
    store = Checkpoints(tmp_path, clock=lambda: now[0])
    store.write(checkpoint(expires=store.expiry(3600)), write("text"), overwrite=False)
    now[0] = 3599.0
    assert store.get(PATH, ME)
    now[0] = 3601.0
    with pytest.raises(NotFoundError, match="expired"):
        store.get(PATH, ME)
    store.delete_expired_checkpoints()
    assert not PATH.below(tmp_path).exists()
    for seconds in (3599, 11 * 366 * 86400):
        with pytest.raises(RequestError, match="between 1 hour"):
            store.expiry(seconds)


def test_overwritten_checkpoint_is_either_old_or_new(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    store.write(checkpoint(), write("old"), overwrite=False)

    def fail(directory: Path) -> None:
        (directory / "weights").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(ServerError, match="No space left"):
        store.write(checkpoint(), fail, overwrite=True)
    assert (PATH.below(tmp_path) / "weights").read_text() == "old"
    store.write(checkpoint(), write("new"), overwrite=True)
    assert (PATH.below(tmp_path) / "weights").read_text() == "new"
    assert [entry.name for entry in PATH.below(tmp_path).parent.iterdir()] == ["one"]


def test_a_server_killed_between_two_renames_loses_nothing(tmp_path: Path) -> None:
    Checkpoints(tmp_path).write(checkpoint(), write("old"), overwrite=False)
    directory = PATH.below(tmp_path)
    directory.rename(directory.with_name(".one.0f1e.old"))
    assert Checkpoints(tmp_path).get(PATH, ME)


def test_foreign_directories_are_no_checkpoints(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    store.write(checkpoint(), write("text"), overwrite=False)
    for name in ("a name", "empty", ".hidden"):
        (PATH.below(tmp_path).parent / name).mkdir()
    (tmp_path / "other").mkdir()
    assert [found.path for found in store.of_model("a-b:train:0", ME)] == [PATH]
    assert store.model_ids() == ["a-b:train:0"]
    store.delete_expired_checkpoints()


@pytest.mark.parametrize(
    "damaged", ["", "{", "[1]", "{}", '{"created": "x"}', "created-is-text", "metadata-is-list", "\udcff"]
)
def test_damaged_record_is_logged_and_others_are_listed(
    tmp_path: Path, damaged: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Checkpoints(tmp_path)
    other = TinkerPath("a-b:train:0", "weights", "two")
    for path in (PATH, other):
        store.write(checkpoint(path), write("text"), overwrite=False)
    record = PATH.below(tmp_path) / "checkpoint.json"
    good = json.loads(record.read_text())
    wrong = {"created-is-text": {**good, "created": "x"}, "metadata-is-list": {**good, "user_metadata": [1]}}
    text = json.dumps(wrong[damaged]) if damaged in wrong else damaged
    record.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert [found.path for found in store.of_model("a-b:train:0", ME)] == [other]
    store.delete_expired_checkpoints()
    assert str(record) in caplog.text
    with pytest.raises(ServerError, match=re.escape(str(record))):
        store.get(PATH, ME)


@pytest.mark.parametrize(
    "text",
    [
        "tinker://a:train:0/weights/..",
        "tinker://../weights/one",
        "tinker://a:train:0/weights/one/two",
        "tinker://a:train:0/other/one",
        "tinker://a/weights/one",
        "tinker://a:train:0/weights/",
        "tinker://a:train:0/weights/one\n",
        "file:///etc/passwd",
        "",
    ],
)
def test_paths_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(RequestError):
        TinkerPath.parse(text)
