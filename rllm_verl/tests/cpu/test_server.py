"""The rollout server in this process, without Ray: what it samples, and how its weights change."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rllm_core.contracts.engine import SamplingParams
from rllm_core.errors import BackendError, ConfigError, RolloutError
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_local import engine as engine_module
from rllm_local.engine import LocalEngine
from rllm_local.model import load_model
from rllm_local.settings import ModelSection
from rllm_verl.cpu.messages import Response, ServerSettings
from rllm_verl.cpu.server import RolloutServer

DEADLINE = 100.0
PROMPT = [10, 11, 12]
ASKED: dict[str, Any] = {
    "max_tokens": 8,
    "seed": 7,
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.9,
    "stop_token_ids": [2],
}
Weights = dict[str, NDArray[np.float32]]


def serve(settings: ServerSettings, scenario: Callable[[RolloutServer], Awaitable[None]]) -> None:
    async def main() -> None:
        server = RolloutServer(settings)
        try:
            await asyncio.wait_for(scenario(server), DEADLINE)
        finally:
            server._executor.shutdown(cancel_futures=True)

    asyncio.run(main())


async def sync_weights(server: RolloutServer, weights: Weights, version: int) -> None:
    await server.stage_weights(weights)
    await server.sync_weights(version)


def assert_same(response: Response, other: Response) -> None:
    """The same but for the rounding of sums, whose order depends on what was cached."""
    assert dataclasses.replace(response, log_probs=None) == dataclasses.replace(other, log_probs=None)
    np.testing.assert_allclose(response.log_probs or [], other.log_probs or [], atol=1e-5)


@pytest.fixture
def token_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each row of each forward pass so far has computed."""
    counts: list[int] = []
    sample_next = engine_module.sample_next

    def counting(model: Any, cache: Any, rows: Any) -> Any:
        counts.extend(len(row.fresh) for row in rows)
        return sample_next(model, cache, rows)

    monkeypatch.setattr(engine_module, "sample_next", counting)
    return counts


async def wait_for_computation(token_counts: list[int]) -> None:
    token_counts.clear()
    while not token_counts:
        await asyncio.sleep(0)


def sampled_by_the_engine(settings: ServerSettings, prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
    loaded = load_model(ModelSection(name=settings.model, device="cpu"), seed=0)

    async def main() -> list[tuple[list[int], list[float]]]:
        with ThreadPoolExecutor(1) as executor:
            engine = LocalEngine(
                loaded.model,
                TemplateRenderer(loaded.tokenizer, loaded.stop_ids),
                executor,
                max_context=64,
                max_concurrency=8,
                kv_cache_bytes=1 << 24,
            )
            params = SamplingParams(max_tokens=8, seed=7, temperature=0.7, top_k=20, top_p=0.9)
            calls = [engine.generate(prompt, params, session=str(index)) for index, prompt in enumerate(prompts)]
            return [(done.token_ids.tolist(), done.logprobs.tolist()) for done in await asyncio.gather(*calls)]

    return asyncio.run(main())


def test_server_samples_the_same_as_the_engine(settings: ServerSettings) -> None:
    prompts = [[10, 11, 12], [40, 41], [13, 14, 15, 16, 17]]
    expected = sampled_by_the_engine(settings, prompts)

    async def scenario(server: RolloutServer) -> None:
        calls = [server.generate(prompt, ASKED, f"r{index}") for index, prompt in enumerate(prompts)]
        responses = await asyncio.gather(*calls)
        assert [response.token_ids for response in responses] == [tokens for tokens, _ in expected]
        for response, (_, logprobs) in zip(responses, expected, strict=True):
            np.testing.assert_allclose(response.log_probs or [], logprobs, atol=1e-6)
            assert (response.stop_reason, response.weight_version) == ("completed", 0)

    serve(settings, scenario)


@pytest.mark.parametrize("cut", [{"top_k": -1, "top_p": 1.0}, {"top_k": 3, "top_p": 1.0}, {"top_k": 5, "top_p": 0.6}])
def test_log_probs_equal_forward_pass_before_truncation(settings: ServerSettings, cut: dict[str, Any]) -> None:
    model = load_model(ModelSection(name=settings.model, device="cpu"), seed=0).model

    async def scenario(server: RolloutServer) -> None:
        response = await server.generate(PROMPT, ASKED | cut, "a")
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([PROMPT + response.token_ids]), use_cache=False).logits[0]
        expected = torch.log_softmax(logits[len(PROMPT) - 1 : -1].double() / ASKED["temperature"], dim=-1)
        expected = expected[torch.arange(len(response.token_ids)), torch.tensor(response.token_ids)]
        np.testing.assert_allclose(response.log_probs or [], expected.numpy(), atol=1e-5)

    serve(settings, scenario)


def test_turn_computes_only_new_tokens_of_conversation(settings: ServerSettings, token_counts: list[int]) -> None:
    async def scenario(server: RolloutServer) -> None:
        first = await server.generate(PROMPT, ASKED | {"max_tokens": 1}, "conversation")
        history = PROMPT + first.token_ids
        await server.generate([*history, 20, 21], ASKED | {"max_tokens": 1}, "conversation")
        await server.generate([*history, 20, 21], ASKED | {"max_tokens": 1}, "another")
        assert token_counts == [3, 3, 6]

    serve(settings, scenario)


def test_new_weights_change_samples_and_version(
    settings: ServerSettings, first_weights: Weights, other_weights: Weights
) -> None:
    async def scenario(server: RolloutServer) -> None:
        before = await server.generate(PROMPT, ASKED, "a")
        names = list(other_weights)
        for part in (names[:5], names[5:]):
            await server.stage_weights({name: other_weights[name] for name in part})
            assert_same(await server.generate(PROMPT, ASKED, "a"), before)
        await server.sync_weights(4)
        after = await server.generate(PROMPT, ASKED, "a")
        assert after.weight_version == server.weight_version == 4
        assert after.log_probs != before.log_probs
        await sync_weights(server, first_weights, 5)
        assert_same(await server.generate(PROMPT, ASKED, "a"), dataclasses.replace(before, weight_version=5))

    serve(settings, scenario)


def test_running_response_keeps_its_weights(
    settings: ServerSettings, other_weights: Weights, token_counts: list[int]
) -> None:
    async def scenario(server: RolloutServer) -> None:
        undisturbed = await server.generate(PROMPT, ASKED | {"max_tokens": 40, "stop_token_ids": []}, "undisturbed")
        running = asyncio.create_task(server.generate(PROMPT, ASKED | {"max_tokens": 40, "stop_token_ids": []}, "b"))
        await wait_for_computation(token_counts)
        await sync_weights(server, other_weights, 1)
        assert_same(await running, undisturbed)
        assert (await server.generate(PROMPT, ASKED, "b")).weight_version == 1

    serve(settings, scenario)


def test_mismatched_weights_fail_without_a_change(settings: ServerSettings, other_weights: Weights) -> None:
    norm = other_weights["model.norm.weight"]

    async def scenario(server: RolloutServer) -> None:
        before = await server.generate(PROMPT, ASKED, "a")
        with pytest.raises(BackendError, match=r"has no weights critic\.weight"):
            await server.stage_weights({"critic.weight": norm})
        with pytest.raises(BackendError, match=r"model\.norm\.weight has shape \(63,\), but \(64,\)"):
            await server.stage_weights({"model.norm.weight": norm[:63]})
        await server.stage_weights({"model.norm.weight": norm})
        with pytest.raises(BackendError, match=r"lacks weights .*embed_tokens\.weight.* and \d+ more"):
            await server.sync_weights(1)
        with pytest.raises(BackendError, match="lacks weights"):
            await server.sync_weights(1)
        assert_same(await server.generate(PROMPT, ASKED, "a"), before)

    serve(settings, scenario)


def test_one_name_of_tied_weights_is_enough(settings: ServerSettings, other_weights: Weights) -> None:
    del other_weights["lm_head.weight"]

    async def scenario(server: RolloutServer) -> None:
        await sync_weights(server, other_weights, 1)
        assert server.weight_version == 1

    serve(settings, scenario)


def test_abort_ends_responses_and_resume_serves_again(settings: ServerSettings, token_counts: list[int]) -> None:
    long = ASKED | {"max_tokens": 50, "stop_token_ids": []}

    async def scenario(server: RolloutServer) -> None:
        whole = await server.generate(PROMPT, long, "whole")
        running = asyncio.create_task(server.generate(PROMPT, long, "cut"))
        await wait_for_computation(token_counts)
        assert await server.abort_all_requests() == {"aborted_count": 1}
        cut = await running
        assert cut.stop_reason == "aborted"
        assert 0 < len(cut.token_ids) < 50
        assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
        await server.abort_all_requests(reject_request=True)
        assert await server.generate(PROMPT, long, "late") == Response([], None, "aborted", 0)
        await server.resume_generation()
        assert_same(await server.generate(PROMPT, long, "again"), whole)

    serve(settings, scenario)


def test_rejected_request_leaves_other_requests_running(settings: ServerSettings) -> None:
    wrong: list[tuple[list[int], dict[str, Any], str]] = [
        ([], {}, "empty-prompt"),
        (list(range(4, 68)), {}, "prompt-too-long"),
        ([10, 9999], {}, "unknown-token"),
        (PROMPT, {"max_tokens": 0}, "bad-sampling-parameter"),
    ]

    async def scenario(server: RolloutServer) -> None:
        good = asyncio.create_task(server.generate(PROMPT, ASKED, "good"))
        for prompt, asked, code in wrong:
            with pytest.raises(RolloutError) as failed:
                await server.generate(prompt, ASKED | asked, "bad")
            assert failed.value.code == code
        assert (await good).stop_reason == "completed"

    serve(settings, scenario)


def test_a_directory_without_a_model_is_refused(settings: ServerSettings, tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"contains no config\.json"):
        RolloutServer(dataclasses.replace(settings, model=str(tmp_path)))
