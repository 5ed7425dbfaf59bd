"""A small request cannot make the server store much, and the stored data is bounded."""

from __future__ import annotations

import socket
import time
import tracemalloc
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from tinker.proto import tinker_public_pb2 as proto

from rllm_tinker_server.limits import TinkerLimits
from rllm_tinker_server.messages import SAMPLED, STAND_IN, RequestError
from rllm_tinker_server.sparse import to_dense
from rllm_tinker_server.wire.forward_backward import forward_backward_of, forward_backward_request

from .conftest import DEADLINE, Server, Start
from .test_protocol import sample, sampler_of

HALF_A_BODY = b"POST /api/v1/asample HTTP/1.1\r\nHost: localhost\r\nX-API-Key: tml-test\r\nContent-Length: 9\r\n\r\n{"


def sparse_request(shapes: list[tuple[int, int]], tokens: int = 4) -> bytes:
    """A datum for each shape, of whose targets none is listed."""
    message = proto.ForwardBackwardRequest(model_id="a:train:0", seq_id=1, loss_fn="cross_entropy")
    for rows, columns in shapes:
        datum = message.data.add()
        datum.model_input.add().encoded_text.tokens = np.ones(tokens, np.int32).tobytes()
        targets = datum.loss_fn_inputs["target_tokens"]
        targets.dtype = proto.DTYPE_INT64
        targets.shape.extend((rows, columns))
        targets.sparse_csr.crow_indices = np.zeros(max(rows, 0) + 1, np.int64).tobytes()
    return bytes(message.SerializeToString())


def read(body: bytes, most: int) -> Any:
    return forward_backward_of(forward_backward_request(body), TinkerLimits(max_sparse_numbers=most))


def test_sparse_rows_are_made_dense_when_they_fit() -> None:
    assert [example.targets.shape for example in read(sparse_request([(4, 5), (4, 5)]), 40).examples] == [(4, 5)] * 2


@pytest.mark.parametrize(
    ("shapes", "why"),
    [
        ([(4, 5), (4, 6)], "contain 44 numbers"),
        ([(4, 1 << 40)], "contain"),
        ([(4, -11)], "contain 44 numbers"),
        ([(5, 4)], "Datum 0: .*shape .5, 4. do not match 4 tokens"),
        ([(4, -5)], "Datum 0: "),
        ([(0, 1 << 62)], "Datum 0: "),
    ],
)
def test_too_large_sparse_rows_are_rejected_before_expansion(shapes: list[tuple[int, int]], why: str) -> None:
    with pytest.raises(RequestError, match=why):
        read(sparse_request(shapes), 40)


@pytest.mark.parametrize(("starts", "columns"), [([0, 2, 2], [3, 3]), ([0, 1, 3], [0, 1, 1])])
def test_sparse_rows_with_duplicate_columns_are_rejected(starts: list[int], columns: list[int]) -> None:
    rows = [np.array(each, np.int64) for each in (starts, columns)]
    with pytest.raises(ValueError, match="two entries"):
        to_dense(np.ones(len(columns)), *rows, (2, 5), missing=0)


def spans_request(lengths: list[int | None], prompt: int = 0) -> bytes:
    """A datum of 4 targets with a span for each length, after a prompt. A span of length None has no content."""
    message = proto.ForwardBackwardRequest(model_id="a:train:0", seq_id=1, loss_fn=STAND_IN)
    datum = message.data.add()
    datum.model_input.add().encoded_text.tokens = np.ones(4, np.int32).tobytes()
    targets = datum.loss_fn_inputs["target_tokens"]
    targets.dtype = proto.DTYPE_INT64
    targets.dense = np.ones(4, np.int64).tobytes()
    if prompt:
        datum.loss_fn_input_spans.add().prompt_tokens.length = prompt
    for length in lengths:
        span = datum.loss_fn_input_spans.add()
        if length is not None:
            span.sampled_tokens.length = length
    return bytes(message.SerializeToString())


@pytest.mark.parametrize(("lengths", "prompt"), [([3, 0, 1], 0), ([1, 1], 2)])
def test_spans_that_cover_the_targets_are_read(lengths: list[int | None], prompt: int) -> None:
    request = forward_backward_request(spans_request(lengths, prompt))
    (example,) = forward_backward_of(request, TinkerLimits(stand_in_losses=True)).examples
    assert example.inputs[SAMPLED].tolist() == [0.0] * prompt + [1.0] * (4 - prompt)


@pytest.mark.parametrize(
    ("lengths", "why"),
    [
        ([4, None], "span 1 "),
        ([5, -1], "span 1 "),
        ([3], "3 positions"),
        ([], "0 positions"),
        ([1 << 28], "268435456 positions"),
    ],
)
def test_spans_mismatching_targets_are_rejected_without_using_memory(lengths: list[int | None], why: str) -> None:
    request = forward_backward_request(spans_request(lengths))
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match=f"Datum 0: .*{why}"):
            forward_backward_of(request, TinkerLimits(stand_in_losses=True))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_samples_above_memory_wait_except_the_only_one(start: Start) -> None:
    server = start(max_pending_sample_tokens=40)
    sampler_id = sampler_of(server, server.session())
    server.host.gate.clear()
    large = sample(server, sampler_id, 0, max_tokens=13, num_samples=10)
    assert large.status_code == 200
    assert sample(server, sampler_id, 1).status_code == 429
    assert sample(server, sampler_id, 0, max_tokens=13, num_samples=10).json() == large.json()
    server.host.gate.set()
    assert server.result(large.json()["request_id"]).status_code == 200
    small = [sample(server, sampler_id, number) for number in (2, 3)]
    assert [response.status_code for response in small] == [200, 200]


@pytest.mark.parametrize("sent", [b"POST /api/v1/asample HTTP/1.1\r\nHost: loc", HALF_A_BODY])
def test_incomplete_requests_are_disconnected_silently(
    start: Start, sent: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    server = start(read_seconds=0.3)
    address = server.url.removeprefix("http://").split(":")
    connections = [socket.create_connection((address[0], int(address[1])), timeout=DEADLINE) for _ in range(30)]
    for connection in connections:
        connection.sendall(sent)
    for connection in connections:
        with connection, suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert server.session()
    assert "Traceback" not in capfd.readouterr().err


def test_there_are_only_so_many_sessions(start: Start) -> None:
    server = start(max_sessions=1)
    session_id = server.session()
    refused = server.post("create_session", tags=[], user_metadata={})
    assert refused.status_code == 400
    assert "ServiceClient.close" in refused.json()["detail"]
    server.post(f"sessions/{session_id}/finish")
    assert server.session()


def test_the_sampling_session_used_longest_ago_makes_room(start: Start) -> None:
    server = start(max_samplers=2)
    session_id = server.session()
    first, second = (sampler_of(server, session_id, number) for number in (0, 1))
    sample(server, first, 0)
    third = sampler_of(server, session_id, 2)
    assert [sample(server, name, 1).status_code for name in (first, second, third)] == [200, 404, 200]


@pytest.mark.parametrize("metadata", [[1], "text", 3, {"a": "x" * 70_000}])
@pytest.mark.parametrize("route", ["create_session", "create_model", "save_weights"])
def test_invalid_or_too_large_metadata_is_rejected(server: Server, route: str, metadata: Any) -> None:
    session_id = server.session()
    if route == "save_weights":
        content: dict[str, Any] = {"model_id": server.model(session_id), "seq_id": 1, "path": "one"}
        refusal = server.result(server.get_request_id(route, user_metadata=metadata, **content)).json()["error"]
    else:
        content = {"session_id": session_id, "model_seq_id": 0, "base_model": "fake", "lora_config": {"rank": 4}}
        response = server.post(route, user_metadata=metadata, **content)
        assert response.status_code == 400
        refusal = response.json()["detail"]
    assert "user_metadata" in refusal
    assert server.raw.get("/api/v1/training_runs").status_code == 200


@pytest.mark.parametrize("name", [3, "x" * 70_000])
def test_invalid_or_too_large_display_name_is_rejected(server: Server, name: Any) -> None:
    response = server.post("create_session", display_name=name)
    assert response.status_code == 400
    assert "display_name" in response.json()["detail"]


def test_metadata_values_are_returned_as_text(server: Server) -> None:
    session_id = server.post("create_session", user_metadata={"step": 1}).json()["session_id"]
    assert server.raw.get(f"/api/v1/sessions/{session_id}").json()["user_metadata"] == {"step": "1"}


@pytest.mark.long
def test_maintenance_continues_after_an_error(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(keep_retrieved=0.1, sweep_interval=0.02)
    futures = server.running.service.futures
    sweep, faults = futures.sweep, [ZeroDivisionError("by nothing")]

    def fail_once() -> None:
        if faults:
            raise faults.pop()
        sweep()

    monkeypatch.setattr(futures, "sweep", fail_once)
    request_id = sample(server, sampler_of(server, server.session()), 0).json()["request_id"]
    until = time.monotonic() + DEADLINE
    while server.result(request_id).status_code != 410:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert not faults
    assert "by nothing" in caplog.text
