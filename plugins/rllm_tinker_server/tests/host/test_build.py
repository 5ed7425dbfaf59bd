"""A server that is started again: on its model under another name, on another model, and in a directory others use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tinker_in_process import running_server

from rllm_tinker_server.build import ModelOptions, opened_service

DEADLINE = 100.0


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """The real client of a new server on ``tiny``, with one directory for all of them: ``connect(names=…, seed=…)``."""
    import tinker

    with ExitStack() as stack:

        def start(**options: Any) -> Any:
            service = stack.enter_context(
                opened_service(ModelOptions(model="tiny", checkpoints=tmp_path, kv_cache_gib=0.01, **options))
            )
            url = stack.enter_context(running_server(service)).url
            client = tinker.ServiceClient(base_url=url, api_key="tml-test")
            stack.callback(lambda: client.close("success").result(DEADLINE))
            return client

        yield start


@pytest.fixture
def saved(connect: Callable[..., Any]) -> tuple[str, str]:
    """The paths of a training state and of sampler weights, saved on a server that called its model ``./m``."""
    trained = connect(names=("./m",)).create_lora_training_client("./m", rank=4).result(DEADLINE)
    state, sampler = trained.save_state("a"), trained.save_weights_for_sampler("b")
    return state.result(DEADLINE).path, sampler.result(DEADLINE).path


def test_what_was_saved_is_loaded_by_a_server_that_calls_its_model_something_else(
    connect: Callable[..., Any], saved: tuple[str, str]
) -> None:
    client = connect(names=("Qwen/Qwen3-8B",))
    state, sampler = saved
    trained = client.create_training_client_from_state_with_optimizer(state).result(DEADLINE)
    assert trained.get_info().model_data.model_name == "Qwen/Qwen3-8B"
    assert client.create_sampling_client(model_path=sampler).result(DEADLINE).get_base_model() == "Qwen/Qwen3-8B"


def test_what_was_saved_is_refused_by_a_server_of_the_same_name_with_other_weights(
    connect: Callable[..., Any], saved: tuple[str, str]
) -> None:
    import tinker

    client = connect(names=("./m",), seed=1)
    state, sampler = saved
    with pytest.raises(tinker.TinkerError, match=r"weights .* --seed"):
        client.create_training_client_from_state_with_optimizer(state).result(DEADLINE)
    with pytest.raises(tinker.TinkerError, match=r"weights .* --seed"):
        client.create_sampling_client(model_path=sampler).result(DEADLINE)


def test_the_tokenizer_of_tiny_is_saved_once_and_as_a_whole(connect: Callable[..., Any], tmp_path: Path) -> None:
    connect()
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "tokenizer-of-tiny").iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json"} <= {path.name for path in files}
    connect()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "tokenizer-of-tiny").iterdir()} == files
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer-of-tiny"]
