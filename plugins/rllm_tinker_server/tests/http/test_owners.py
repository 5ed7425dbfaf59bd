"""Each key owns what it makes: other keys get the answers of unknown ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import tinker
from tinker import types

from rllm_tinker_server.app import API, create_app

from .conftest import DEADLINE, Connect, Server, Start
from .test_protocol import PROTOBUF, gradient_body, sample, sampler_of

OTHER_KEY = "tml-other"
SAME_FOR_ALL = {
    ("POST", "/client/config"),
    ("POST", "/client/dynamic_config"),
    ("POST", "/telemetry"),
    ("GET", "/get_server_capabilities"),
    ("GET", "/healthz"),
}
NEW_OBJECT = {("POST", "/create_session")}
SIGNED = {("GET", "/files/{id}/{kind}/{name}/{file}")}
CHECKPOINT = "/training_runs/{id}/checkpoints/{kind}/{name}"


def requests_to(session_id: str) -> dict[tuple[str, str], Any]:
    """Return a request to each route that finds or changes objects: the ids of its path, and its body."""
    model_id, sampler_id = f"{session_id}:train:0", f"{session_id}:sample:0"
    path, numbered = f"tinker://{model_id}/weights/one", {"model_id": model_id, "seq_id": 9}
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}
    asked = {"sampling_session_id": sampler_id, "seq_id": 9, "prompt": prompt, "sampling_params": {"max_tokens": 2}}
    state, export = (model_id, "weights", "one"), (model_id, "external_weights", "one")
    return {
        ("POST", "/retrieve_future"): ((), {"request_id": f"{model_id}:0"}),
        ("POST", "/cancel_future"): ((), {"request_id": f"{sampler_id}:0"}),
        ("POST", "/asample"): ((), asked),
        ("POST", "/forward_backward"): ((), gradient_body(model_id, 9)),
        ("POST", "/forward"): ((), numbered),
        ("POST", "/optim_step"): ((), {**numbered, "adam_params": {}}),
        ("POST", "/session_heartbeat"): ((), {"session_id": session_id}),
        ("POST", "/save_weights_for_sampler"): ((), {**numbered, "path": "two"}),
        ("POST", "/create_sampling_session"): (
            (),
            {"session_id": session_id, "sampling_session_seq_id": 9, "base_model": "fake"},
        ),
        ("POST", "/save_weights"): ((), {**numbered, "path": "two"}),
        ("POST", "/save_weights_external"): ((), {**numbered, "path": "two"}),
        ("POST", "/load_weights"): ((), {**numbered, "path": path}),
        ("POST", "/create_model"): (
            (),
            {"session_id": session_id, "model_seq_id": 9, "base_model": "fake", "lora_config": {"rank": 4}},
        ),
        ("POST", "/unload_model"): ((), {"model_id": model_id}),
        ("POST", "/get_info"): ((), {"model_id": model_id}),
        ("POST", "/weights_info"): ((), {"tinker_path": path}),
        ("POST", "/compare_tensors"): ((), {"model_id": model_id, "sampler_id": sampler_id}),
        ("POST", "/score_suspects"): ((), {"model_id": model_id, "rows": [[1, 2]]}),
        ("POST", "/sessions/{id}/finish"): ((session_id,), {}),
        ("GET", "/samplers/{id}"): ((sampler_id,), None),
        ("GET", "/sessions"): ((), None),
        ("GET", "/sessions/{id}"): ((session_id,), None),
        ("GET", "/training_runs"): ((), None),
        ("GET", "/training_runs/{id}"): ((model_id,), None),
        ("GET", "/training_runs/{id}/checkpoints"): ((model_id,), None),
        ("GET", "/checkpoints"): ((), None),
        ("DELETE", CHECKPOINT): (state, None),
        ("PUT", f"{CHECKPOINT}/ttl"): (state, {"ttl_seconds": 3600}),
        ("POST", f"{CHECKPOINT}/publish"): (state, None),
        ("DELETE", f"{CHECKPOINT}/publish"): (state, None),
        ("GET", f"{CHECKPOINT}/external_weights_urls"): (export, None),
        ("POST", "/{operation:path}"): (("anything",), numbered),
    }


def send(server: Server, route: tuple[str, str], request: Any) -> tuple[int, str]:
    """Return the status and the text of the response."""
    (method, path), (ids, body) = route, request
    for name in ("{id}", "{kind}", "{name}", "{operation:path}"):
        if name in path:
            path, ids = path.replace(name, ids[0]), ids[1:]
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    headers = PROTOBUF if isinstance(body, bytes) else {}
    response = server.raw.request(method, API + path, content=content, headers=headers)
    return response.status_code, response.text


def fill(server: Server) -> str:
    """Make one object of each kind, and return the session's id."""
    session_id = server.session()
    model_id = server.model(session_id)
    for number, route in enumerate(("save_weights", "save_weights_for_sampler", "save_weights_external"), 1):
        server.result(server.get_request_id(route, model_id=model_id, seq_id=number, path="one"))
    sampler_of(server, session_id)
    return session_id


def list_ids(server: Server) -> list[str]:
    return [found["tinker_path"] for found in server.raw.get("/api/v1/checkpoints").json()["checkpoints"]]


def test_each_route_is_in_the_table(server: Server) -> None:
    found = {
        (method, route.path.removeprefix(API))
        for route in create_app(server.running.service).routes
        for method in route.methods - {"HEAD"}
        if route.path != f"{API}/{{operation:path}}"
    }
    table = requests_to("any").keys() - {("POST", "/{operation:path}")}
    assert found == table | SAME_FOR_ALL | NEW_OBJECT | SIGNED


@pytest.mark.parametrize("keys", [(), ("tml-test", OTHER_KEY)])
def test_other_keys_get_the_answers_of_unknown_ids(start: Start, keys: tuple[str, ...]) -> None:
    server = start(*keys)
    other, session_id, unknown = server.with_key(OTHER_KEY), fill(server), str(uuid4())
    before = [list_ids(server), server.raw.get("/api/v1/training_runs").json()]
    for route, request in requests_to(session_id).items():
        status, text = send(other, route, request)
        assert (status, text.replace(session_id, unknown)) == send(other, route, requests_to(unknown)[route]), route
        if not request[0] and not request[1]:
            assert session_id not in text, route
    assert [list_ids(server), server.raw.get("/api/v1/training_runs").json()] == before
    for route, request in requests_to(session_id).items():
        if route[0] == "GET":
            assert session_id in send(server, route, request)[1] or route[1].startswith("/samplers"), route
    assert server.result(f"{session_id}:train:0:0").status_code == 200
    assert server.result(server.step(f"{session_id}:train:0", 4)).json()["metrics"]["steps"] == 1.0


def test_samples_of_others_are_not_cancelled(start: Start) -> None:
    server = start()
    sampler_id = sampler_of(server, server.session())
    server.host.gate.clear()
    request_id = sample(server, sampler_id, 0, max_tokens=13).json()["request_id"]
    server.with_key(OTHER_KEY).post("cancel_future", request_id=request_id)
    server.host.gate.set()
    assert server.result(request_id).headers["content-type"] == "application/x-protobuf"


def test_an_error_does_not_list_models_of_others(start: Start) -> None:
    server = start(max_models=1)
    model_id = server.model(server.session())
    other = server.with_key(OTHER_KEY)
    content = {"session_id": other.session(), "model_seq_id": 0, "base_model": "fake", "lora_config": {"rank": 4}}
    refused = other.post("create_model", **content)
    assert refused.status_code == 400
    assert model_id not in refused.text


def test_one_key_has_a_limited_number_of_models(start: Start) -> None:
    server = start(max_models_per_key=1)
    session_id = server.session()
    server.model(session_id)
    content = {"session_id": session_id, "model_seq_id": 1, "base_model": "fake", "lora_config": {"rank": 4}}
    assert server.post("create_model", **content).status_code == 400
    other = server.with_key(OTHER_KEY)
    assert other.model(other.session())


def test_checkpoints_belong_to_their_key_after_a_restart(start: Start, tmp_path: Path) -> None:
    fill(start(checkpoints=tmp_path))
    paths = list_ids(start(checkpoints=tmp_path))
    assert len(paths) == 3
    again = start("tml-test", OTHER_KEY, checkpoints=tmp_path)
    assert (list_ids(again), list_ids(again.with_key(OTHER_KEY))) == (paths, [])
    records = "".join(file.read_text() for file in tmp_path.rglob("checkpoint.json"))
    assert "tml-test" not in records


def test_only_key_of_server_has_all_checkpoints(start: Start, tmp_path: Path) -> None:
    """The backend `tinker` starts its own server with a new key for each run, and resumes."""
    fill(start("tml-first", checkpoints=tmp_path))
    server = start("tml-second", checkpoints=tmp_path)
    path = list_ids(server)[0].removeprefix("tinker://").replace("/", "/checkpoints/", 1)
    assert server.raw.delete(f"/api/v1/training_runs/{path}").status_code == 200
    assert len(list_ids(server)) == 2


def test_checkpoints_without_an_owner_are_read_only(start: Start, tmp_path: Path) -> None:
    fill(start(checkpoints=tmp_path))
    for file in tmp_path.rglob("checkpoint.json"):
        old = {key: value for key, value in json.loads(file.read_text()).items() if key not in ("owner", "public")}
        file.write_text(json.dumps(old))
    server = start(checkpoints=tmp_path)
    paths = list_ids(server)
    assert len(paths) == 3
    assert list_ids(server.with_key(OTHER_KEY)) == paths
    assert server.post("weights_info", tinker_path=paths[0]).status_code == 200
    path = paths[0].removeprefix("tinker://").replace("/", "/checkpoints/", 1)
    refused = server.raw.delete(f"/api/v1/training_runs/{path}")
    assert refused.status_code == 404
    assert "cannot change" in refused.json()["detail"]


def test_the_real_client_shares_a_published_checkpoint(start: Start, connect: Connect) -> None:
    server = start()
    trainer = connect(server).create_lora_training_client(base_model="fake", rank=8).result(DEADLINE)
    path = trainer.save_state("one").result(DEADLINE).path
    mine = tinker.RestClient(base_url=server.url, api_key="tml-test")
    theirs = tinker.RestClient(base_url=server.url, api_key=OTHER_KEY)
    client = connect(server, OTHER_KEY)
    with pytest.raises(tinker.NotFoundError, match="API key"):
        client.create_training_client_from_state(path).result(DEADLINE)
    mine.publish_checkpoint_from_tinker_path(path).result(DEADLINE)
    assert [found.public for found in mine.list_checkpoints(trainer.model_id).result(DEADLINE).checkpoints] == [True]
    assert client.create_training_client_from_state(path).result(DEADLINE).get_info().lora_rank == 8
    assert theirs.list_user_checkpoints().result(DEADLINE).checkpoints == []
    for change in (theirs.delete_checkpoint_from_tinker_path, theirs.unpublish_checkpoint_from_tinker_path):
        with pytest.raises(tinker.NotFoundError, match="cannot change"):
            change(path).result(DEADLINE)
    mine.unpublish_checkpoint_from_tinker_path(path).result(DEADLINE)
    with pytest.raises(tinker.NotFoundError):
        client.create_training_client_from_state(path).result(DEADLINE)


def test_real_client_cannot_train_models_of_others(start: Start, connect: Connect) -> None:
    server = start()
    trainer = connect(server).create_lora_training_client(base_model="fake").result(DEADLINE)
    sampler = trainer.save_weights_and_get_sampling_client().result(DEADLINE)
    other = tinker.RestClient(base_url=server.url, api_key=OTHER_KEY)
    assert other.list_sessions().result(DEADLINE).sessions == []
    with pytest.raises(tinker.NotFoundError):
        other.get_training_run(trainer.model_id).result(DEADLINE)
    with pytest.raises(tinker.APIStatusError, match="410"):
        other.get_sampler(sampler._sampling_session_id).result(DEADLINE)
    assert trainer.optim_step(types.AdamParams()).result(DEADLINE).metrics["steps"] == 1.0
