"""No client starves another: shares of limits, and the order of work."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from tinker import types

from rllm_tinker_server.fairness import FairGate, SharedLimit
from rllm_tinker_server.limits import TinkerLimits
from rllm_tinker_server.messages import BaseModelInfo, RequestError
from rllm_tinker_server.owners import Owner
from rllm_tinker_server.service import Service, Snapshots

from .conftest import DEADLINE, Connect, FakeHost, FakeSamplers, Server, Start
from .test_protocol import sample, sampler_of

OTHER_KEY = "tml-other"


def test_an_owner_has_as_much_as_remains_free() -> None:
    limit = SharedLimit(12)
    taken = {"first": 0, "second": 0, "third": 0}
    for owner in taken:
        while limit.has_room(owner, 1):
            limit.add(owner, 1)
            taken[owner] += 1
    assert taken == {"first": 6, "second": 3, "third": 2}
    limit.remove("first", 6)
    assert limit.has_room("third", 4)


def enter_in_order(gate: FairGate, owners: list[str]) -> list[str]:
    """Return the owners in the order in which they pass. The first one is inside when the others come."""

    async def scenario() -> list[str]:
        passed: list[str] = []

        async def enter(owner: str) -> None:
            async with gate.enter(owner):
                passed.append(owner)
                await asyncio.sleep(0.001)

        await asyncio.gather(*(enter(owner) for owner in owners))
        return passed

    return asyncio.run(scenario())


def test_owners_alternate_at_the_gate() -> None:
    assert enter_in_order(FairGate(1), list("aaaabbc")) == list("abacbaa")


def test_an_owner_without_work_enters_spare_places() -> None:
    async def scenario() -> None:
        gate = FairGate(2, spare=1)
        async with gate.enter("a"), gate.enter("a"), gate.enter("b"):
            assert gate.is_full
            third = asyncio.create_task(gate.enter("c").__aenter__())
            await asyncio.sleep(0)
            assert not third.done()
            third.cancel()
            with pytest.raises(asyncio.CancelledError):
                await third
        async with gate.enter("d"), gate.enter("d"):
            pass

    asyncio.run(scenario())


def test_snapshots_are_dropped_from_the_owner_with_most() -> None:
    left: list[str] = []
    snapshots = Snapshots(3, left.append)
    snapshots.put("b0", "b0", owner="b", on_disk=True)
    for number in range(4):
        snapshots.put(f"a{number}", f"a{number}", owner="a", on_disk=False)
    assert left == ["a0", "a1"]
    snapshots.put("b1", "b1", owner="b", on_disk=False)
    snapshots.put("c0", "c0", owner="c", on_disk=False)
    assert left == ["a0", "a1", "b0", "a2"]
    with pytest.raises(RequestError, match="--max-snapshots"):
        snapshots.put("d0", "d0", owner="d", on_disk=False)
    snapshots.put("a4", "a4", owner="a", on_disk=False)
    assert left[4:] == ["a3"]


def test_snapshots_of_one_client_keep_samplers_of_another(start: Start) -> None:
    server = start(max_snapshots=4)
    other = server.with_key(OTHER_KEY)

    def snapshot(client: Server, model_id: str, number: int) -> str:
        content = {"model_id": model_id, "seq_id": number, "sampling_session_seq_id": number}
        answer = client.result(client.get_request_id("save_weights_for_sampler", **content))
        return str(answer.json()["sampling_session_id"])

    sampler_id = snapshot(other, other.model(other.session()), 1)
    model_id = server.model(server.session())
    mine = [snapshot(server, model_id, number) for number in range(1, 9)]
    assert sample(other, sampler_id, 0).status_code == 200
    assert [sample(server, each, 0).status_code for each in mine] == [410] * 5 + [200] * 3


def test_pending_samples_leave_room_for_other_clients(start: Start) -> None:
    server = start(max_pending_samples=4)
    clients = server, server.with_key(OTHER_KEY)
    server.host.gate.clear()
    statuses = []
    for client in clients:
        sampler_id = sampler_of(client, client.session())
        statuses.append([sample(client, sampler_id, number, max_tokens=13).status_code for number in range(3)])
    assert statuses == [[200, 200, 429], [200, 429, 429]]
    server.host.gate.set()


def test_training_of_several_owners_alternates(tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        order: list[str] = []
        with ThreadPoolExecutor(max_workers=1) as executor:
            host = FakeHost(
                BaseModelInfo(name="fake", tokenizer="fake", max_context=64, vocabulary=100, layers=1, dtype="float32")
            )
            samplers = FakeSamplers(host, executor)
            service = Service(host, samplers, executor, tmp_path, names=("fake",), limits=TinkerLimits())
            await asyncio.gather(*(service.in_worker(Owner(name), order.append, name) for name in "aaabb"))
        return order

    assert asyncio.run(scenario()) == list("ababa")


HEAD = "POST /api/v1/asample HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {}\r\nContent-Length: {}\r\n\r\n"


def hold_body(server: Server, key: str, size: int) -> socket.socket:
    """Send all of a body but its last byte."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), timeout=DEADLINE)
    connection.sendall(HEAD.format(key, size).encode() + b"x" * (size - 1))
    return connection


def test_held_bodies_leave_room_for_other_keys(start: Start) -> None:
    server = start(max_held_bytes=4000)
    body = {"content": b"x" * 900}
    with ExitStack() as stack:
        held = stack.enter_context(hold_body(server, "tml-test", 2000))
        while server.raw.post("/api/v1/asample", **body).status_code != 429:
            pass
        refused = server.raw.post("/api/v1/asample", **body)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        other = server.with_key(OTHER_KEY)
        assert other.raw.post("/api/v1/asample", **body).status_code == 400
        chunks = (b"x" * 600 for _ in range(4))
        assert other.raw.post("/api/v1/asample", content=chunks).status_code == 429
        held.sendall(b"x")
        assert held.recv(12) == b"HTTP/1.1 400"
    assert server.raw.post("/api/v1/asample", **body).status_code == 400


def test_the_real_client_repeats_a_body_without_room(
    start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(max_held_bytes=8000)
    sampler = connect(server).create_sampling_client(base_model="fake").result(DEADLINE)
    was_refused, has_room = threading.Event(), SharedLimit.has_room

    def record(limit: SharedLimit, owner: str, amount: int) -> bool:
        found = has_room(limit, owner, amount)
        if not found:
            was_refused.set()
        return found

    with hold_body(server, "tml-test", 4000):
        while server.raw.post("/api/v1/asample", content=b"x" * 3000).status_code != 429:
            pass
        monkeypatch.setattr(SharedLimit, "has_room", record)
        params = types.SamplingParams(max_tokens=1, stop=["x" * 1000] * 4)
        repeated = sampler.sample(types.ModelInput.from_ints([1]), 1, params)
        assert was_refused.wait(DEADLINE)
    assert repeated.result(DEADLINE).sequences
