"""Exports for other programs, by the real client, from the real host."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tinker
from tinker import types
from tinker_in_process import tiny_server

from rllm_tinker_server.checkpoints import Checkpoints, TinkerPath
from rllm_tinker_server.library import VALID, Downloads
from rllm_tinker_server.request_errors import ForbiddenError
from rllm_tinker_server.serve import TinkerServeOptions

from .conftest import DEADLINE, KEY
from .test_stores import ME, checkpoint, write

TOKENS = [4, 9, 14, 19, 24]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with tiny_server(tmp_path_factory.mktemp("checkpoints"), TinkerServeOptions(keys=(KEY,))) as server:
        yield server.url


@pytest.fixture(scope="module")
def trainer(url: str) -> Iterator[Any]:
    """A model after a step."""
    client = tinker.ServiceClient(base_url=url, api_key=KEY)
    trainer = client.create_lora_training_client(base_model="tiny", rank=4, seed=1).result(DEADLINE)
    inputs: dict[str, Any] = {"target_tokens": TOKENS[1:], "weights": [1.0] * 4}
    example = types.Datum(model_input=types.ModelInput.from_ints(TOKENS[:-1]), loss_fn_inputs=inputs)
    trainer.forward_backward([example], "cross_entropy").result(DEADLINE)
    trainer.optim_step(types.AdamParams(learning_rate=0.1)).result(DEADLINE)
    yield trainer
    client.close("success").result(DEADLINE)


def test_an_export_is_listed_and_is_not_loaded(url: str, trainer: Any) -> None:
    path = trainer.save_weights_external("mine").result(DEADLINE).path
    assert path.endswith("/external_weights/mine")
    rest = tinker.RestClient(base_url=url, api_key=KEY)
    listed = rest.list_checkpoints(trainer.model_id).result(DEADLINE).checkpoints
    assert (path, "external") in [(found.tinker_path, found.checkpoint_type) for found in listed]
    client = tinker.ServiceClient(base_url=url, api_key=KEY)
    with pytest.raises(tinker.BadRequestError, match="export"):
        client.create_sampling_client(model_path=path).result(DEADLINE)
    with pytest.raises(tinker.BadRequestError, match="export"):
        client.create_training_client_from_state(path).result(DEADLINE)
    client.close("success").result(DEADLINE)


def test_an_encrypted_export_is_rejected(trainer: Any) -> None:
    with pytest.raises(tinker.RequestFailedError, match="does not encrypt"):
        trainer.save_weights_external("secret", age_encryption_recipients=["age1x"]).result(DEADLINE)
    assert trainer.optim_step(types.AdamParams()).result(DEADLINE)


def test_url_needs_no_key_and_serves_one_file(url: str, trainer: Any) -> None:
    path = trainer.save_weights_external("one").result(DEADLINE).path
    trainer.save_weights_external("two").result(DEADLINE)
    rest = tinker.RestClient(base_url=url, api_key=KEY)
    urls = rest.get_external_weights_urls(path).result(DEADLINE).urls
    assert urls.keys() == {"adapter_config.json", "adapter_model.safetensors"}
    config = urls["adapter_config.json"]
    with urllib.request.urlopen(config, timeout=DEADLINE) as answer:
        assert json.load(answer)["r"] == 4
    for other in (config.replace("/one/", "/two/"), config.replace("config.json", "model.safetensors"), config[:-1]):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(other, timeout=DEADLINE)


def test_a_training_state_has_no_urls(url: str, trainer: Any) -> None:
    path = trainer.save_state("state").result(DEADLINE).path
    place = path.removeprefix("tinker://").replace("/", "/checkpoints/", 1)
    asked = f"{url}/api/v1/training_runs/{place}/external_weights_urls"
    response = httpx.get(asked, headers={"X-API-Key": KEY}, timeout=DEADLINE)
    assert response.status_code == 400
    assert "save_weights_external first" in response.json()["detail"]


@pytest.mark.parametrize("change", [{"expires": "nine"}, {"expires": "9" * 30}, {"signature": "ä"}, {"signature": ""}])
def test_changed_or_expired_url_is_rejected(tmp_path: Path, change: dict[str, str]) -> None:
    now, path = [0.0], TinkerPath("a-b:train:0", "external_weights", "one")
    store = Checkpoints(tmp_path)
    store.write(checkpoint(path), write("{}"), overwrite=False)
    (path.below(tmp_path) / "adapter_config.json").write_text("{}")
    downloads = Downloads(store, clock=lambda: now[0])
    urls, _ = downloads.urls(path, ME, "http://x")
    query = dict(part.split("=") for part in urls["adapter_config.json"].partition("?")[2].split("&"))
    assert downloads.file(path, "adapter_config.json", query).name == "adapter_config.json"
    with pytest.raises(ForbiddenError):
        downloads.file(path, "adapter_config.json", query | change)
    now[0] = VALID + 1
    with pytest.raises(ForbiddenError, match="expired"):
        downloads.file(path, "adapter_config.json", query)
