"""The rollout engine's answers to servers that fail, with a real process in the server's place."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import ray
from expecting import expect_error

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.errors import BackendError, UnsupportedSamplingError
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_local import tiny
from rllm_verl.processes import process_of
from rllm_verl.rollouts import VerlEngine

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]


def stand_in() -> type:
    """Made in a function: Ray sends such a class as it is, and the test's module cannot be imported elsewhere."""

    class Server:
        def answer(self, **said: Any) -> Any:
            from verl.workers.rollout.replica import TokenOutput

            return TokenOutput(**said)

        def sleep(self) -> None:
            time.sleep(600)

    return Server


class Client:
    """In place of verl's, which finds a server: asks this one."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.asked: dict[str, Any] = {}

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        self.asked = sampling_params | {"request_id": request_id, "prompt_ids": prompt_ids}
        return await self.call()


@pytest.fixture(scope="module")
def server(ray_cluster: None) -> Iterator[Any]:
    handle = ray.remote(stand_in()).options(num_cpus=0).remote()
    yield handle
    ray.kill(handle)


@pytest.fixture
def engine(server: Any) -> Callable[..., VerlEngine]:
    async def awake() -> None:
        pass

    def engine(
        client: Any, seconds: float = 30.0, *, has_untruncated_logprobs: bool = True, handle: Any = server
    ) -> VerlEngine:
        renderer = TemplateRenderer(tiny.build_tokenizer(), {2})
        return VerlEngine(
            client,
            renderer,
            max_context=16,
            logprobs_before_truncation=has_untruncated_logprobs,
            addresses=(),
            seconds=seconds,
            processes=[process_of("rollout server 0", handle)],
            wake=awake,
        )

    return engine


def generate(engine: VerlEngine, prompt: list[int], max_tokens: int = 4) -> Completion:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.5, seed=7)
    return asyncio.run(engine.generate(prompt, sampling, session="task:0"))


def test_response_has_tokens_log_probs_and_version(engine: Callable[..., VerlEngine], server: Any) -> None:
    said = {"token_ids": [5, 2], "log_probs": [-0.5, -0.25], "extra_fields": {"global_steps": 3}}
    client = Client(lambda: server.answer.remote(**said))
    completion = generate(engine(client), [5, 6], max_tokens=100)
    assert completion.token_ids.tolist() == [5, 2]
    assert np.array_equal(completion.logprobs, np.array([-0.5, -0.25], np.float32))
    assert (completion.finish_reason, completion.weight_version) == ("stop", 3)
    assert client.asked["request_id"] == "task:0"
    assert client.asked["max_tokens"] == 14  # what the context has room for
    assert (client.asked["seed"], client.asked["temperature"]) == (7, 0.5)


def test_what_a_response_lacks_is_unknown_or_refused(engine: Callable[..., VerlEngine], server: Any) -> None:
    def responding(**said: Any) -> Client:
        return Client(lambda: server.answer.remote(**said))

    truncated = engine(responding(token_ids=[5, 2], log_probs=[-0.5, -0.25]), has_untruncated_logprobs=False)
    assert np.isnan(generate(truncated, [5, 6]).logprobs).all()
    assert generate(engine(responding(token_ids=[5], log_probs=[-1.0])), [5]).finish_reason == "length"
    with pytest.raises(BackendError, match=r"calculate_log_probs=true"):
        generate(engine(responding(token_ids=[5])), [5])


def test_interrupted_response_has_version_spans(engine: Callable[..., VerlEngine], server: Any) -> None:
    cut_off = {"token_ids": [5, 6], "log_probs": [-0.5, -0.25], "stop_reason": "aborted"}
    rest = {"token_ids": [2], "log_probs": [-1.0], "stop_reason": "completed"}
    said = zip((cut_off, rest), (3, 4), strict=True)
    parts = (part | {"extra_fields": {"global_steps": version}} for part, version in said)
    client = Client(lambda: server.answer.remote(**next(parts)))
    completion = generate(engine(client), [5])
    assert completion.token_ids.tolist() == [5, 6, 2]
    assert (completion.weight_version, completion.version_spans) == (3, ((3, 2), (4, 1)))
    assert client.asked["prompt_ids"] == [5, 5, 6]
    assert client.asked["request_id"] == "task:0"


def test_silent_server_fails_at_the_deadline(engine: Callable[..., VerlEngine], server: Any) -> None:
    other = ray.remote(stand_in()).options(num_cpus=0).remote()
    try:
        with pytest.raises(BackendError, match=r"no answer within 0\.5 seconds \(`deadlines\.rollout`\)"):
            generate(engine(Client(lambda: other.sleep.remote()), seconds=0.5), [5])
    finally:
        ray.kill(other)


def test_a_server_that_died_is_named(engine: Callable[..., VerlEngine]) -> None:
    other = ray.remote(stand_in()).options(num_cpus=0).remote()
    process = process_of("rollout server 0", other)
    made = engine(Client(lambda: other.sleep.remote()), handle=other)
    os.kill(process.pid, signal.SIGKILL)
    with expect_error(BackendError, "process-died", "sampling rollouts", f"rollout server 0 (process {process.pid}"):
        generate(made, [5])


def test_schema_is_refused_as_unsupported(engine: Callable[..., VerlEngine]) -> None:
    async def never() -> None:
        raise AssertionError("the server was asked")

    with pytest.raises(UnsupportedSamplingError, match="JSON schema"):
        asyncio.run(engine(Client(never)).generate([7], SamplingParams(max_tokens=4, json_schema="{}"), session="s"))
