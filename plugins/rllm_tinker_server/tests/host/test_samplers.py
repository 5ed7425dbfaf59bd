"""Sampling from snapshots: merged models, their engines, and how many of them there are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from local_models import tiny_tokenizer

from rllm_core.seeding import derive_seed
from rllm_local import engine
from rllm_tinker_server.host import Host
from rllm_tinker_server.lora import AdapterWeights
from rllm_tinker_server.messages import (
    Example,
    ForwardBackward,
    LoraSpec,
    RequestError,
    SampledSequence,
    SampleSettings,
    ScoreSettings,
)
from rllm_tinker_server.samplers import Samplers

from .conftest import make_host, make_request, train

FREE = SampleSettings(max_tokens=20, seed=3, temperature=1.0, top_k=-1, top_p=1.0, stop_ids=frozenset())
Make = Callable[..., Samplers]
Weights = list[AdapterWeights]
PROMPT = np.array([5, 9, 31, 4, 60, 12], np.int32)


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield pool


@pytest.fixture
def make_samplers(host: Host, executor: ThreadPoolExecutor) -> Make:
    def make(of: Host = host, *, max_merged: int = 2, max_concurrency: int = 64) -> Samplers:
        return Samplers(of, executor, kv_cache_bytes=1 << 24, max_concurrency=max_concurrency, max_merged=max_merged)

    return make


@pytest.fixture
def snapshots(host: Host) -> Weights:
    """Weights after one, two and three steps."""
    made = []
    for _ in range(3):
        train(host, "m", make_request())
        made.append(host.weights("m"))
    return made


def _run(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    async def gather_all() -> list[Any]:
        return await asyncio.wait_for(asyncio.gather(*calls), 60)

    return asyncio.run(gather_all())


def _forward(host: Host, tokens: np.ndarray) -> np.ndarray:
    """Log-probs of all tokens but the first, by the forward pass of training."""
    tokens = tokens.astype(np.int64)
    ones = np.ones(len(tokens) - 1, np.float32)
    example = Example(tokens=tokens[:-1], targets=tokens[1:], inputs={"weights": ones})
    request = ForwardBackward(loss="cross_entropy", config={}, examples=(example,), forward_only=True)
    return host.forward_backward("m", request).logprobs[0]


def _same(first: SampledSequence, second: SampledSequence) -> None:
    assert first.tokens.tolist() == second.tokens.tolist()
    np.testing.assert_allclose(first.logprobs, second.logprobs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("cut", [{}, {"top_k": 5, "top_p": 0.7}])
def test_log_probs_of_samples_equal_training_pass(
    cut: dict[str, Any], host: Host, make_samplers: Make, snapshots: Weights
) -> None:
    """Also where top-k and top-p remove tokens: log-probs are those before."""
    (sequences,) = _run(make_samplers().sample(snapshots[-1], [PROMPT] * 4, replace(FREE, **cut)))
    for sampled in sequences:
        assert sampled.stop_reason == "length"
        assert sampled.tokens.dtype == np.int32
        assert sampled.logprobs.dtype == np.float32
        logprobs = _forward(host, np.concatenate((PROMPT, sampled.tokens)))
        np.testing.assert_allclose(sampled.logprobs, logprobs[len(PROMPT) - 1 :], atol=1e-5, rtol=0)


def test_log_probs_of_prompts_equal_training_pass(executor: ThreadPoolExecutor) -> None:
    # Prompts are computed in pieces of at most this many tokens.
    host = make_host(max_tokens_per_microbatch=7)
    host.create("m", LoraSpec(rank=8, seed=1))
    train(host, "m", make_request())
    prompt = np.random.default_rng(0).integers(0, 70, 30).astype(np.int32)
    samplers = Samplers(host, executor, kv_cache_bytes=1 << 24, max_concurrency=4, max_merged=1)
    calls = ((host.weights("m"), prompt), (None, prompt), (None, prompt[:1]))
    found, base, single = (scores.logprobs for scores in _run(*(samplers.score(*call) for call in calls)))
    expected = _forward(host, prompt)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[1:], expected, atol=1e-5, rtol=0)
    assert np.isnan(found[0])
    assert not np.allclose(base[1:], expected, atol=1e-2)
    np.testing.assert_array_equal(single, [np.nan])


def test_other_tokens_get_log_probs_of_whole_distribution(executor: ThreadPoolExecutor) -> None:
    host = make_host(max_tokens_per_microbatch=7)
    prompt = np.random.default_rng(0).integers(0, 70, 30).astype(np.int32)
    targets = np.random.default_rng(1).integers(-1, 70, (29, 3))
    samplers = Samplers(host, executor, kv_cache_bytes=1 << 24, max_concurrency=4, max_merged=1)
    settings = ScoreSettings(top=host.base.vocabulary, targets=targets, draws=5, seed=1)
    scores, again, greedy, single = _run(
        samplers.score(None, prompt, settings),
        samplers.score(None, prompt, settings),
        samplers.score(None, prompt, replace(settings, draw_temperature=0.0)),
        samplers.score(None, prompt[:1], replace(settings, targets=None)),
    )
    order = scores.top.tokens[1:].argsort(axis=1)
    table = np.take_along_axis(scores.top.logprobs[1:], order, axis=1)
    expected = np.where(targets < 0, 0, np.take_along_axis(table, targets.clip(0), axis=1))
    np.testing.assert_array_equal(scores.targets, expected)
    assert scores.draws.tokens.shape == (29, 5)
    np.testing.assert_array_equal(scores.draws.logprobs, np.take_along_axis(table, scores.draws.tokens, axis=1))
    np.testing.assert_array_equal(scores.draws.tokens, again.draws.tokens)
    assert (greedy.draws.tokens == scores.top.tokens[1:, :1]).all()
    assert single.draws.tokens.shape == (0, 5)


def test_draws_have_frequencies_at_the_temperature(executor: ThreadPoolExecutor) -> None:
    host = make_host()
    samplers = Samplers(host, executor, kv_cache_bytes=1 << 24, max_concurrency=4, max_merged=1)
    settings = ScoreSettings(top=host.base.vocabulary, draws=20_000, draw_temperature=0.5)
    (scores,) = _run(samplers.score(None, PROMPT[:2], settings))
    weights = np.exp(scores.top.logprobs[1].astype(np.float64) / 0.5)
    expected = np.zeros(host.base.vocabulary)
    expected[scores.top.tokens[1]] = weights / weights.sum()
    found = np.bincount(scores.draws.tokens[0], minlength=host.base.vocabulary) / 20_000
    # Five standard deviations, and the seed is fixed.
    assert (np.abs(found - expected) <= 5 * np.sqrt(expected / 20_000) + 1e-9).all()


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_likeliest_tokens_come_from_the_sampling_distribution(
    make_samplers: Make, snapshots: Weights, temperature: float
) -> None:
    samplers = make_samplers()
    ((sampled,),) = _run(samplers.sample(snapshots[-1], [PROMPT], replace(FREE, temperature=temperature)))
    given = np.concatenate((PROMPT, sampled.tokens))
    (scores,) = _run(samplers.score(snapshots[-1], given, ScoreSettings(top=79, temperature=temperature or 1.0)))
    top = scores.top.since(len(PROMPT))
    assert top.tokens.shape == (20, 79)
    assert (np.diff(top.logprobs, axis=1) <= 0).all()
    np.testing.assert_allclose(np.exp(top.logprobs.astype(np.float64)).sum(axis=1), 1, atol=1e-5)
    place = top.tokens == sampled.tokens[:, None]
    np.testing.assert_allclose(top.logprobs[place], sampled.logprobs, atol=1e-5, rtol=0)
    np.testing.assert_allclose(scores.logprobs[len(PROMPT) :], sampled.logprobs, atol=1e-5, rtol=0)


def test_samples_of_one_prompt_share_its_computation(make_samplers: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    real = engine.sample_next

    def counting(model: Any, cache: Any, rows: Any) -> Any:
        computed.extend(len(row.fresh) for row in rows)
        return real(model, cache, rows)

    monkeypatch.setattr(engine, "sample_next", counting)
    prompt, samplers = np.random.default_rng(0).integers(4, 70, 300).astype(np.int32), make_samplers()
    _run(samplers.sample(None, [prompt] * 8, replace(FREE, max_tokens=4)))
    assert sum(computed) == 300 + 8 * 4 - 1
    # Also requests that come one after the other.
    _run(samplers.sample(None, [prompt], replace(FREE, max_tokens=4, seed=9)))
    assert sum(computed) == 300 + 8 * 4 - 1 + 4


def test_first_sequence_has_the_seed_others_derive_theirs(make_samplers: Make) -> None:
    samplers = make_samplers()
    (several,) = _run(samplers.sample(None, [PROMPT] * 3, FREE))
    for index, sampled in enumerate(several):
        seed = derive_seed(3, "sequence", index) if index else 3
        ((separate,),) = _run(make_samplers().sample(None, [PROMPT], replace(FREE, seed=seed)))
        _same(sampled, separate)
    assert len({tuple(sampled.tokens.tolist()) for sampled in several}) == 3


def test_without_a_seed_every_request_draws_another(make_samplers: Make) -> None:
    samplers = make_samplers()
    ((first,), (second,)) = _run(*(samplers.sample(None, [PROMPT], replace(FREE, seed=None)) for _ in range(2)))
    assert first.tokens.tolist() != second.tokens.tolist()


def test_temperature_0_is_greedy_with_untruncated_log_probs(host: Host, make_samplers: Make) -> None:
    greedy, narrow = _run(
        make_samplers().sample(None, [PROMPT], replace(FREE, temperature=0.0)),
        make_samplers().sample(None, [PROMPT], replace(FREE, top_k=1, temperature=0.5)),
    )
    assert greedy[0].tokens.tolist() == narrow[0].tokens.tolist()
    with torch.inference_mode():
        logits = host.model(input_ids=torch.from_numpy(PROMPT[None].astype(np.int64))).logits[0, -1]
    token = greedy[0].tokens[0]
    assert token == int(logits.argmax())
    assert greedy[0].logprobs[0] == pytest.approx(torch.log_softmax(logits, -1)[token].item(), abs=1e-5)
    assert narrow[0].logprobs[0] == pytest.approx(torch.log_softmax(logits / 0.5, -1)[token].item(), abs=1e-5)


def test_response_ends_with_stop_token_or_stop_string(make_samplers: Make) -> None:
    samplers = make_samplers()
    ((free,),) = _run(samplers.sample(None, [PROMPT], replace(FREE, max_tokens=60)))
    tokens = free.tokens.tolist()
    settings = replace(FREE, max_tokens=60, stop_ids=frozenset({tokens[7]}))
    ((at_token,),) = _run(samplers.sample(None, [PROMPT], settings))
    assert at_token.tokens.tolist() == tokens[: tokens.index(tokens[7]) + 1]
    assert at_token.stop_reason == "stop"

    # A string that begins in one token and ends in the next.
    decode = lambda count: tiny_tokenizer().decode(tokens[:count], skip_special_tokens=False)  # noqa: E731
    wanted = decode(42)[len(decode(40)) :]
    ((at_string,),) = _run(samplers.sample(None, [PROMPT], replace(FREE, max_tokens=60, stop_strings=(wanted,))))
    ends = next(count for count in range(1, 61) if wanted in decode(count))
    assert at_string.tokens.tolist() == tokens[:ends]
    assert at_string.stop_reason == "stop"


def test_without_stop_ids_the_models_own_apply(make_samplers: Make, host: Host) -> None:
    ((free,),) = _run(make_samplers().sample(None, [PROMPT], replace(FREE, max_tokens=30)))
    host.stop_ids = frozenset({int(free.tokens[4])})
    ((own,),) = _run(make_samplers().sample(None, [PROMPT], replace(FREE, max_tokens=30, stop_ids=None)))
    assert own.stop_reason == "stop"
    assert own.tokens[-1] == free.tokens[4]


def test_the_context_limits_a_response(make_samplers: Make, host: Host) -> None:
    prompt = np.full(host.base.max_context - 4, 7, np.int32)
    ((sampled,),) = _run(make_samplers().sample(None, [prompt], FREE))
    assert len(sampled.tokens) == 4
    assert sampled.stop_reason == "length"


def test_mixed_requests_sample_with_their_snapshots_weights(make_samplers: Make, snapshots: Weights) -> None:
    wanted = [None, *snapshots]
    separate = [_run(make_samplers().sample(weights, [PROMPT] * 2, FREE))[0] for weights in wanted]
    samplers = make_samplers(max_merged=2)
    order = [0, 3, 1, 2, 3, 0, 1, 2]
    found = _run(*(samplers.sample(wanted[index], [PROMPT] * 2, FREE) for index in order))
    for index, sequences in zip(order, found, strict=True):
        for sampled, expected in zip(sequences, separate[index], strict=True):
            _same(sampled, expected)
    assert len({tuple(sequences[0].tokens.tolist()) for sequences in separate}) == 4
    assert len(tuple(samplers.models._merged)) == 2


def test_the_least_recently_used_model_leaves(make_samplers: Make, snapshots: Weights) -> None:
    a, b, c = snapshots
    samplers = make_samplers(max_merged=2)
    seen = []

    async def scenario() -> None:
        for weights in (a, b, a, c, None, b):
            await samplers.sample(weights, [PROMPT], FREE)
            seen.append(tuple(samplers.models._merged))

    _run(scenario())
    assert seen == [(a,), (a, b), (b, a), (a, c), (a, c), (c, b)]


def test_model_in_use_stays_while_others_wait(make_samplers: Make, snapshots: Weights) -> None:
    a, b, *_ = snapshots
    samplers = make_samplers(max_merged=1)

    async def scenario() -> list[str]:
        ended = []
        async with samplers.models.use(a):
            waiting = asyncio.create_task(samplers.sample(b, [PROMPT], FREE))
            waiting.add_done_callback(lambda _: ended.append("b"))
            # The base model needs no place.
            await samplers.sample(None, [PROMPT], FREE)
            ended.append("base")
            assert tuple(samplers.models._merged) == (a,)
        await waiting
        assert tuple(samplers.models._merged) == (b,)
        return ended

    assert _run(scenario()) == [["base", "b"]]


def test_client_without_model_gets_a_place_above_limit(make_samplers: Make, snapshots: Weights) -> None:
    a, b, c = snapshots
    samplers = make_samplers(max_merged=1)

    async def scenario() -> None:
        async with samplers.models.use(a, "busy"):
            await samplers.sample(b, [PROMPT], FREE, client="other")
            assert tuple(samplers.models._merged) == (a,)
            async with samplers.models.use(b, "other"):
                third = asyncio.create_task(samplers.sample(c, [PROMPT], FREE, client="third"))
                await asyncio.sleep(0.01)
                assert tuple(samplers.models._merged) == (a, b)
            await third
        await samplers.sample(a, [PROMPT], FREE, client="busy")
        assert tuple(samplers.models._merged) == (a,)

    _run(scenario())


def test_waiting_client_gets_place_among_busy_ones(make_samplers: Make, snapshots: Weights) -> None:
    a, b, *_ = snapshots
    samplers = make_samplers(max_merged=1)

    async def busy(until: asyncio.Task[Any]) -> None:
        while not until.done():
            await samplers.sample(a, [PROMPT], FREE)

    async def scenario() -> None:
        async with samplers.models.use(a):
            waiting = asyncio.create_task(samplers.sample(b, [PROMPT], FREE))
            await asyncio.sleep(0)
            streams = [asyncio.create_task(busy(waiting)) for _ in range(3)]
            await asyncio.sleep(0)
        await asyncio.gather(waiting, *streams)

    _run(scenario())


def test_forgotten_weights_leave_after_their_last_request(make_samplers: Make, snapshots: Weights) -> None:
    a, b, *_ = snapshots
    samplers = make_samplers()

    async def scenario() -> None:
        await samplers.sample(a, [PROMPT], FREE)
        samplers.forget(a)
        samplers.forget(a)
        assert tuple(samplers.models._merged) == ()
        async with samplers.models.use(b):
            samplers.forget(b)
            assert tuple(samplers.models._merged) == (b,)
        assert tuple(samplers.models._merged) == ()
        await samplers.sample(a, [PROMPT], FREE)

    _run(scenario())


def test_only_used_and_last_models_have_caches(make_samplers: Make, snapshots: Weights) -> None:
    a, b, *_ = snapshots
    samplers = make_samplers()

    async def scenario() -> None:
        async with samplers.models.use(a) as first:
            engine = first.engine
            async with samplers.models.use(b) as second:
                assert second.engine is not engine
            assert first.engine is engine
        assert first._engine is None
        assert second._engine is not None
        async with samplers.models.use(None):
            assert second._engine is None

    _run(scenario())


def test_cancelled_request_releases_its_model(make_samplers: Make, snapshots: Weights) -> None:
    a, b, *_ = snapshots
    samplers = make_samplers(max_merged=1)

    async def scenario() -> None:
        for _ in range(2):
            task = asyncio.create_task(samplers.sample(a, [PROMPT] * 2, replace(FREE, max_tokens=400)))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await samplers.sample(b, [PROMPT], FREE)

    _run(scenario())


def test_infinite_weights_are_rejected_and_others_are_served(host: Host, make_samplers: Make) -> None:
    broken = host.weights("m")
    for factors in broken.factors.values():
        factors.up.fill_(torch.nan)
    samplers = make_samplers()
    with pytest.raises(RequestError, match="logits"):
        _run(samplers.sample(broken, [PROMPT] * 2, FREE))
    ((sampled,),) = _run(samplers.sample(None, [PROMPT], FREE))
    assert len(sampled.tokens) == 20


@pytest.mark.parametrize("token", [5000, -1])
def test_tokens_outside_the_vocabulary_are_refused(token: int, make_samplers: Make) -> None:
    with pytest.raises(RequestError, match=f"prompt.* token {token}"):
        _run(make_samplers().sample(None, [np.array([5, token], np.int32)], FREE))


@pytest.mark.parametrize("top_k", [0, 1 << 70])
def test_a_large_top_k_means_all_tokens(make_samplers: Make, top_k: int) -> None:
    samplers = make_samplers()
    ((free,), (wide,)) = _run(
        samplers.sample(None, [PROMPT], FREE), samplers.sample(None, [PROMPT], replace(FREE, top_k=top_k))
    )
    _same(free, wide)


def test_seeded_prompts_are_sampled_independently(make_samplers: Make) -> None:
    prompts, seeds = [PROMPT, PROMPT[:2], PROMPT], (11, 12, 13)
    (together,) = _run(make_samplers().sample(None, prompts, replace(FREE, seeds=seeds)))
    for prompt, seed, sequence in zip(prompts, seeds, together, strict=True):
        ((separate,),) = _run(make_samplers().sample(None, [prompt], replace(FREE, seed=seed)))
        assert sequence.tokens.tolist() == separate.tokens.tolist()
