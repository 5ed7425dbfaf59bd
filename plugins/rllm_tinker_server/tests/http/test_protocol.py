"""What the real client does only when something goes wrong, sent by hand: repeats, gaps, waits, limits, nonsense."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from expecting import check_values
from tinker import types
from tinker.proto.request_conv import forward_backward_request_to_proto

from .conftest import DEADLINE, Server, Start

PROTOBUF = {"Content-Type": "application/x-protobuf"}


def gradient_body(model_id: str, number: int, first: int = 1) -> bytes:
    example = types.Datum(model_input=types.ModelInput.from_ints([1]), loss_fn_inputs={"target_tokens": [first]})
    request = types.ForwardBackwardRequest(
        forward_backward_input=types.ForwardBackwardInput(data=[example], loss_fn="cross_entropy"),
        model_id=model_id,
        seq_id=number,
    )
    return forward_backward_request_to_proto(request).SerializeToString()


def gradient(server: Server, model_id: str, number: int, first: int = 1) -> str:
    content = gradient_body(model_id, number, first)
    response = server.raw.post("/api/v1/forward_backward", content=content, headers=PROTOBUF)
    assert response.status_code == 200, response.text
    return str(response.json()["request_id"])


def sample(server: Server, sampler_id: str, number: int, num_samples: int = 1, **params: Any) -> httpx.Response:
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}
    return server.post(
        "asample",
        sampling_session_id=sampler_id,
        seq_id=number,
        num_samples=num_samples,
        prompt=prompt,
        sampling_params={"max_tokens": 2, **params},
    )


def sampler_of(server: Server, session_id: str, number: int = 0, **content: Any) -> str:
    content = content or {"base_model": "fake"}
    response = server.post("create_sampling_session", session_id=session_id, sampling_session_seq_id=number, **content)
    assert response.status_code == 200, response.text
    return str(response.json()["sampling_session_id"])


@pytest.fixture(scope="module")
def small(start: Start) -> Server:
    """A server that accepts small bodies only."""
    return start(max_body_bytes=200_000)


@pytest.fixture
def model_id(server: Server) -> Iterator[str]:
    session_id = server.session()
    yield server.model(session_id)
    server.post(f"sessions/{session_id}/finish", reason={"type": "success"})


def test_requests_run_in_order_of_their_numbers(start: Start) -> None:
    server = start()
    model_id = server.model(server.session())
    held = [gradient(server, model_id, number, first=number) for number in (3, 2)]
    step = server.step(model_id, 4)
    assert server.host.calls == []
    held.append(gradient(server, model_id, 1, first=1))
    assert server.result(step).json()["metrics"]["value"] == 3.0
    assert [first for _, first in server.host.calls] == [1, 2, 3, 0]
    assert all(server.result(request_id).status_code == 200 for request_id in held)


def test_a_resent_request_is_executed_once(server: Server, model_id: str) -> None:
    ids = {gradient(server, model_id, 1) for _ in range(3)}
    (request_id,) = ids
    assert server.result(request_id).content == server.result(request_id).content
    assert {server.step(model_id, 2) for _ in range(3)} == {f"{model_id}:2"}
    metrics = server.result(f"{model_id}:2").json()["metrics"]
    assert (metrics["value"], metrics["steps"]) == (1.0, 1.0)


def test_a_resent_creation_makes_one_model(server: Server) -> None:
    session_id = server.session()
    before = len(server.host.models)
    assert server.model(session_id) == server.model(session_id)
    assert len(server.host.models) == before + 1


def test_a_resent_sample_is_sampled_once(server: Server) -> None:
    sampler_id = sampler_of(server, server.session())
    asked = server.samplers.asked
    first, second = (sample(server, sampler_id, 0).json() for _ in range(2))
    assert first == second
    server.result(first["request_id"])
    assert sample(server, sampler_id, 0).json() == first
    assert server.samplers.asked == asked + 1


def test_number_cannot_have_two_kinds_of_request(server: Server, model_id: str) -> None:
    gradient(server, model_id, 1)
    response = server.post("optim_step", model_id=model_id, seq_id=1, adam_params={})
    assert response.status_code == 400
    assert "was forward_backward and is now optim_step" in response.json()["detail"]


def test_numbers_far_ahead_are_refused(server: Server, model_id: str) -> None:
    response = server.post("optim_step", model_id=model_id, seq_id=10**15, adam_params={})
    assert response.status_code == 400
    assert "far ahead" in response.json()["detail"]


def test_full_backlog_rejects_all_but_next_request(start: Start) -> None:
    server = start(max_waiting_bytes=150)
    model_id = server.model(server.session())
    statuses = [
        server.post("optim_step", model_id=model_id, seq_id=number, adam_params={"learning_rate": 0.1}).status_code
        for number in (3, 2, 1)
    ]
    assert statuses == [200, 429, 200]


def test_a_pending_result_is_asked_for_again(start: Start) -> None:
    server = start(long_poll=0.2)
    model_id = server.model(server.session())
    server.host.gate.clear()
    request_id = gradient(server, model_id, 1)
    begun = time.monotonic()
    response = server.result(request_id)
    assert time.monotonic() - begun >= 0.2
    assert (response.status_code, response.json()["queue_state"]) == (408, "active")
    server.host.gate.set()
    until = time.monotonic() + DEADLINE
    while server.result(request_id).status_code == 408:
        assert time.monotonic() < until


def test_unknown_results_and_models_are_gone_at_once(server: Server) -> None:
    response = server.result("unknown:0")
    assert response.status_code == 410
    assert "again" in response.json()["detail"]
    gone = server.post("optim_step", model_id="unknown:train:0", seq_id=1, adam_params={})
    assert gone.status_code == 410
    assert "checkpoint" in gone.json()["detail"]
    assert sample(server, "unknown:sample:0", 0).status_code == 410


def test_a_silent_session_is_ended(start: Start) -> None:
    server = start(session_idle=30.0, sweep_interval=0.02)
    now = 1000.0
    server.running.service.sessions._clock = lambda: now
    session_id = server.session()
    model_id = server.model(session_id)
    for _ in range(3):
        now += 20.0
        time.sleep(0.1)  # Sweeps, several of them.
        assert server.post("session_heartbeat", session_id=session_id).status_code == 200
    assert model_id in server.host.models
    now += 31.0
    until = time.monotonic() + DEADLINE
    while model_id in server.host.models:
        assert time.monotonic() < until
        time.sleep(0.02)
    response = server.post("optim_step", model_id=model_id, seq_id=1, adam_params={})
    assert response.status_code == 410
    check_values(response.json()["detail"], "client")
    assert server.post("session_heartbeat", session_id=session_id).status_code == 410


def test_the_oldest_snapshot_expires(start: Start) -> None:
    server = start(max_snapshots=2)
    session_id = server.session()
    model_id = server.model(session_id)
    samplers = []
    for number in (1, 2, 3):
        content = {"model_id": model_id, "seq_id": number, "sampling_session_seq_id": number}
        answer = server.result(server.get_request_id("save_weights_for_sampler", **content))
        samplers.append(answer.json()["sampling_session_id"])
    statuses = [sample(server, sampler_id, 0).status_code for sampler_id in samplers]
    assert statuses == [410, 200, 200]
    detail = sample(server, samplers[0], 1).json()["detail"]
    assert "have expired" in detail
    assert "save_weights_for_sampler" in detail
    assert len(server.samplers.forgotten) == 1


def test_named_weights_are_read_again_after_eviction(start: Start) -> None:
    server = start(max_snapshots=1)
    session_id = server.session()
    model_id = server.model(session_id)
    saved = server.get_request_id("save_weights_for_sampler", model_id=model_id, seq_id=1, path="kept")
    path = server.result(saved).json()["path"]
    sampler_id = sampler_of(server, session_id, 0, model_path=path)
    server.result(
        server.get_request_id("save_weights_for_sampler", model_id=model_id, seq_id=2, sampling_session_seq_id=1)
    )
    assert len(server.samplers.forgotten) == 1
    answer = server.result(sample(server, sampler_id, 0).json()["request_id"])
    assert answer.headers["content-type"] == "application/x-protobuf"


def test_a_sample_that_nobody_wants_is_stopped(start: Start) -> None:
    server = start()
    sampler_id = sampler_of(server, server.session())
    server.host.gate.clear()
    request_id = sample(server, sampler_id, 0, max_tokens=13).json()["request_id"]
    assert server.post("cancel_future", request_id=request_id).status_code == 200
    assert "cancelled" in server.result(request_id).json()["error"]
    server.host.gate.set()


def test_older_clients_load_into_a_model_they_created(server: Server, model_id: str) -> None:
    gradient(server, model_id, 1)
    server.step(model_id, 2)
    path = server.result(server.get_request_id("save_weights", model_id=model_id, seq_id=3, path="one")).json()["path"]
    assert server.post("weights_info", tinker_path=path).json()["lora_rank"] == 4
    other = server.model(server.session())
    loaded = server.get_request_id("load_weights", model_id=other, seq_id=1, path=path, optimizer=True)
    assert server.result(loaded).json()["path"] == path
    assert server.result(server.step(other, 2)).json()["metrics"]["steps"] == 2.0


def test_unknown_keys_are_ignored_but_unknown_settings_rejected(server: Server, model_id: str) -> None:
    good = server.get_request_id("optim_step", model_id=model_id, seq_id=1, adam_params={}, something="new")
    assert "metrics" in server.result(good).json()
    bad = server.get_request_id("optim_step", model_id=model_id, seq_id=2, adam_params={"nesterov": True})
    assert "nesterov" in server.result(bad).json()["error"]
    other = server.get_request_id("optim_step", model_id=model_id, seq_id=3, optimizer_params={"type": "dimuon"})
    assert "adamw only" in server.result(other).json()["error"]


def test_tensors_with_wrong_size_are_rejected_in_turn(server: Server, model_id: str) -> None:
    from tinker.proto import tinker_public_pb2 as proto

    message = proto.ForwardBackwardRequest()
    message.ParseFromString(gradient_body(model_id, 1))
    message.data[0].loss_fn_inputs["target_tokens"].shape[:] = [3, 5]
    response = server.raw.post("/api/v1/forward_backward", content=message.SerializeToString(), headers=PROTOBUF)
    error = server.result(response.json()["request_id"]).json()["error"]
    check_values(error, "Datum 0: ", "bytes")
    assert server.result(server.step(model_id, 2)).status_code == 200


@pytest.mark.parametrize(
    ("route", "content", "headers", "status", "detail"),
    [
        ("forward_backward", b"garbage", PROTOBUF, 400, "ForwardBackwardRequest"),
        ("forward_backward", b"\xff" * 1000, PROTOBUF, 400, "ForwardBackwardRequest"),
        ("forward_backward", b"", PROTOBUF, 400, "ForwardBackwardRequest"),
        ("forward_backward", b"x", {**PROTOBUF, "Content-Encoding": "zstd"}, 415, "zstd"),
        ("forward_backward", b'{"model_id": "x", "seq_id": 1}', {}, 415, "0.22.3"),
        ("forward", b'{"model_id": "x", "seq_id": 1}', {}, 415, "0.22.3"),
        ("forward_backward", b"x" * 200_001, PROTOBUF, 413, "larger than 200000 bytes"),
        ("forward_backward", (b"x" * 50_000 for _ in range(5)), PROTOBUF, 413, "larger than 200000 bytes"),
        *(("create_model", body, {}, 400, "") for body in (b"", b"{", b"[]", b'"text"', b"[" * 100_000, b"\xff")),
        ("create_model", b'{"session_id": NaN}', {}, 400, ""),
        *((route, b"{}", {}, 404, f"POST /api/v1/{route}") for route in ("create_custom_loss", "auth/token")),
    ],
)
def test_bodies_that_cannot_be_read_are_refused(
    small: Server, route: str, content: Any, headers: dict[str, str], status: int, detail: str
) -> None:
    response = small.raw.post(f"/api/v1/{route}", content=content, headers=headers)
    assert response.status_code == status
    assert detail in response.json()["detail"]


TENSORS: tuple[Any, ...] = (
    3,
    {},
    {"data": [1, 2], "shape": [2]},
    {"data": [1, 2], "shape": [2, 1]},
    {"data": [1], "shape": [1, 2]},
    {"data": ["a"], "shape": [1, 1]},
    {"data": [], "shape": [1, 1 << 60], "sparse_crow_indices": [0, 0], "sparse_col_indices": []},
    {"data": [5], "shape": [1, 2], "sparse_crow_indices": [0, 1], "sparse_col_indices": [2]},
    {"data": [5], "shape": [1, 2], "sparse_crow_indices": [0, 1]},
    {"data": [2.7], "shape": [1, 1]},
    {"data": [True], "shape": [1, 1]},
    {"data": [2], "shape": [1.5, 1]},
    {"data": [[2]], "shape": [1, 1]},
    {"data": [5], "shape": [1, 2], "sparse_crow_indices": [0, 1.5], "sparse_col_indices": [0]},
    {"data": [5], "shape": [1, 2], "sparse_crow_indices": [0, 1], "sparse_col_indices": [0.5]},
    {"data": [5, 6], "shape": [1, 2], "sparse_crow_indices": [0, 2], "sparse_col_indices": [1, 1]},
)
REFUSED: dict[str, tuple[Any, ...]] = {
    "max_tokens": ("3", 0, True),
    "temperature": ("hot", True, 10**400),
    "seed": (1.5,),
    "top_k": (False,),
    "top_p": (-(10**400),),
    "stop": (["a"] * 65, "a" * 1025, [1, "a"], {"a": 1}),
    "tokens": ([], [-1], [2**31], [2**70], [1.5], ["a"], [[1]], "12", [None], [[1, 2], [3]]),
    "topk_prompt_logprobs": (-1, "3", 129, 10**30, True),
    "topk_sample_logprobs": (-1, "3", 129, 10**30, True),
    "target_prompt_logprobs": TENSORS,
}
"""Values by key of a request for samples."""


@pytest.mark.parametrize("key", REFUSED)
def test_values_of_a_wrong_type_are_refused(server: Server, key: str) -> None:
    sampler_id = sampler_of(server, server.session())
    for value in REFUSED[key]:
        chunk = {"type": "encoded_text", "tokens": value if key == "tokens" else [1, 2]}
        content: dict[str, Any] = {"prompt": {"chunks": [chunk]}, "sampling_params": {"max_tokens": 2}}
        if key.endswith("logprobs"):
            content[key] = value
        elif key != "tokens":
            content["sampling_params"][key] = value
        response = server.post("asample", sampling_session_id=sampler_id, seq_id=0, **content)
        assert response.status_code == 400, value
        assert key in response.json()["detail"] or key == "tokens", value


@pytest.mark.parametrize(
    ("params", "what"),
    [
        ({"temperature": -1}, "temperature is -1.0"),
        ({"temperature": 1e-50}, "temperature is 1e-50"),
        ({"temperature": 1e39}, r"temperature is 1e\+39"),
        ({"top_p": -0.5}, "top_p is -0.5"),
        ({"top_p": 0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": -2}, "top_k is -2"),
        ({"stop": ["a", ""]}, "stop string is empty"),
    ],
)
def test_invalid_settings_are_rejected_before_prompt_is_scored(
    server: Server, params: dict[str, Any], what: str
) -> None:
    """A prompt of 64 tokens fills the context, so that nothing is sampled after it."""
    scored = server.samplers.scored
    request_id = server.get_request_id(
        "asample",
        sampling_session_id=sampler_of(server, server.session()),
        seq_id=0,
        prompt={"chunks": [{"tokens": [1] * 64}]},
        prompt_alt_tokens_k=2,
        sampling_params={"max_tokens": 2, **params},
    )
    failed = server.result(request_id).json()
    assert failed["category"] == "user"
    assert re.search(what, failed["error"])
    assert server.samplers.scored == scored


@pytest.mark.parametrize("ttl", ["long", True, -1, 1.5, 10**30])
def test_invalid_time_to_live_is_a_user_error(server: Server, model_id: str, ttl: Any) -> None:
    content = {"model_id": model_id, "seq_id": 1, "path": "one", "ttl_seconds": ttl}
    failed = server.result(server.get_request_id("save_weights", **content)).json()
    assert failed["category"] == "user"
    assert "ttl_seconds" in failed["error"]


@pytest.mark.parametrize("route", ["save_weights_elsewhere", "forward", "forward_backward", "a/b"])
def test_unsupported_operation_uses_its_number(start: Start, route: str) -> None:
    """Later requests would wait until the deadline, and fail."""
    server = start(turn_deadline=DEADLINE)
    model_id = server.model(server.session())
    step = server.step(model_id, 2)
    failed = server.result(server.get_request_id(route, model_id=model_id, seq_id=1)).json()
    assert failed["category"] == "user"
    assert "does not do" in failed["error"] or "0.22.3" in failed["error"]
    assert server.result(step).json()["metrics"]["steps"] == 1.0


def test_a_bug_is_reported_and_serving_continues(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(_: Any) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(server.host, "weights", explode)
    model_id = server.model(server.session())
    content = {"model_id": model_id, "seq_id": 1, "sampling_session_seq_id": 0}
    failed = server.result(server.get_request_id("save_weights_for_sampler", **content)).json()
    assert failed["category"] == "server"
    assert "ZeroDivisionError: by nothing" in failed["error"]
    assert server.result(server.step(model_id, 2)).status_code == 200


def test_keyless_server_accepts_any_key_but_requires_one(server: Server) -> None:
    assert httpx.post(f"{server.url}/api/v1/client/config", json={}).status_code == 401
    assert httpx.post(f"{server.url}/api/v1/client/config", json={}, headers={"X-API-Key": "x"}).status_code == 200
    assert httpx.get(f"{server.url}/api/v1/healthz").json()["status"] == "ok"


LOCAL = ("localhost:1", "127.0.0.1:80", "[::1]:80", "[::1]", "LOCALHOST")
OTHERS = ("attacker.example", "127.0.0.1.attacker.example:80", "10.0.0.1", "", "[::1", "::1")


@pytest.mark.parametrize(("host", "status"), [*((host, 200) for host in LOCAL), *((host, 403) for host in OTHERS)])
def test_keyless_server_answers_only_loopback_host_names(server: Server, host: str, status: int) -> None:
    response = server.raw.get("/api/v1/sessions", headers={"Host": host})
    assert response.status_code == status
    assert ("TINKER_API_KEY" in response.text) is (status == 403)


def test_server_with_key_answers_only_its_clients(start: Start) -> None:
    server = start("tml-right")
    assert server.raw.get("/api/v1/sessions", headers={"Host": "trainer.example"}).status_code == 200
    for key in ("tml-wrong", "", "tml-righ", "tml-right2"):
        refused = httpx.post(f"{server.url}/api/v1/create_session", json={}, headers={"X-API-Key": key})
        assert refused.status_code == 401, key
        assert "not this server's" in refused.json()["detail"] or not key
    assert server.session()
