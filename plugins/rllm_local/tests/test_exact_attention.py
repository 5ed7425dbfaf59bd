"""Log-probs of sampling and of training: the same bits."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from close import assert_close
from hypothesis import given, settings, strategies as st
from local_models import one_order_of_sums, sharpen
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Step, Trajectory, TrajectoryGroup
from rllm_local.engine import LocalEngine
from rllm_local.exact_attention import (
    BLOCK,
    blocks,
    fix_order_of_sums,
    is_exact,
    use_torch_attention,
    whole_blocks,
)
from rllm_local.logprobs import token_outputs
from rllm_local.prefix_trees import micro_batches
from rllm_local.tree_attention import ExactTrees, group_row_ends

VOCABULARY = 70
OWN_SEED = 99
SHARING = 4
"""Number of requests whose prompts are equal up to the length of the shorter one."""
Requests = list[tuple[int, int, int]]
"""Requests: the prompt's length, the number of tokens, and the start in iterations of the event loop."""


def test_blocks_join_and_contain_the_length() -> None:
    for length in range(1, 700):
        found = blocks(length)
        assert [each.start for each in found] == [0, *(each.stop for each in found[:-1])]
        assert found[-1].start < length <= whole_blocks(length) == found[-1].stop


def test_a_setting_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    fix_order_of_sums()
    assert os.environ["MKL_CBWR"] == "COMPATIBLE"


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("length", [1, 4, 31, 33, 64, 150])
def test_attention_and_gradient_equal_those_of_torch(length: int, window: int | None) -> None:
    draw = torch.Generator().manual_seed(length)
    inputs = [torch.randn(1, heads, length, 16, generator=draw) for heads in (4, 2, 2)]
    column = torch.arange(length)
    visible = (column <= column[:, None]) & (column > column[:, None] - (window or length))
    gradient = torch.randn(1, 4, length, 16, generator=draw)

    def results(attend: Callable[..., Tensor]) -> list[Tensor]:
        leaves = [each.clone().requires_grad_() for each in inputs]
        output = attend(*leaves)
        output.backward(gradient)
        return [output.detach(), *(each.grad for each in leaves if each.grad is not None)]

    paths = np.arange(length)[None]
    layout = ExactTrees(group_row_ends(paths, np.array([0]), np.array([length])), window, torch.float32)
    found = results(lambda *each: layout.attend(*each, 0.25))
    expected = results(
        lambda *each: scaled_dot_product_attention(*each, attn_mask=visible, scale=0.25, enable_gqa=True)
    )
    for ours, theirs in zip(found, expected, strict=True):
        # With one key, the gradients of query and key are 0, up to rounding.
        assert_close(ours, theirs, [theirs.abs().max(), gradient.abs().max() if length == 1 else 0], relative=2e-6)


@pytest.fixture(scope="module", params=["model", "grouped_model", "qwen_model", "sliding_model"])
def exact_model(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def sliding_model() -> Any:
    """A Gemma 3 whose layers see 20 positions, or all of them."""
    torch.manual_seed(3)
    config = Gemma3TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=16,
        sliding_window=20,
        layer_types=["sliding_attention", "full_attention"] * 2,
        max_position_embeddings=256,
    )
    return sharpen(Gemma3ForCausalLM(config))


def _ids(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(6, VOCABULARY, 256)[:length].tolist()


async def _response(engine: LocalEngine, length: int, count: int, turns: int, seed: int) -> Completion:
    for _ in range(turns):
        await asyncio.sleep(0)
    sampling = SamplingParams(max_tokens=count, seed=seed, temperature=0.8)
    return await engine.generate(_ids(length, seed // SHARING), sampling, session=str(seed))


def _responses(engine: LocalEngine, requests: Requests) -> list[Completion]:
    async def gather_all() -> list[Completion]:
        return await asyncio.gather(*(_response(engine, *each, seed) for seed, each in enumerate(requests)))

    return asyncio.run(gather_all())


def _bits(done: Completion) -> list[Any]:
    return [done.token_ids.tolist(), done.logprobs.tolist()]


def _batch(steps: Iterator[Step]) -> TokenBatch:
    trajectories = [Trajectory("agent", steps=[step], reward=0.0) for step in steps]
    return build_batch([TrajectoryGroup(group_id="task:agent", trajectories=trajectories)])


@torch.no_grad()
def _train_logprobs(model: Any, batch: TokenBatch, max_tokens: int, temperature: float) -> np.ndarray:
    """Return the trainer's log-probs of the sampled tokens, (n_sampled,)."""
    found = np.zeros(len(batch.tokens), np.float32)
    for part in micro_batches(batch, np.arange(batch.n_rows), max_tokens, model.device):
        found[part.source] = token_outputs(model, part, temperature).logprobs.numpy()
    return found[batch.loss_mask]


requests_of_any_size = st.lists(
    st.tuples(st.integers(1, 150), st.integers(1, 80), st.integers(0, 60)), min_size=1, max_size=9
)


@one_order_of_sums
@settings(max_examples=6, deadline=None)
@given(requests=requests_of_any_size, max_tokens=st.sampled_from([64, 300, 2048]))
def test_the_trainer_computes_the_sampled_logprobs(
    make_engine: Callable[..., LocalEngine], exact_model: Any, requests: Requests, max_tokens: int
) -> None:
    """Updates pack common prompts, and read their keys once."""
    done = _responses(make_engine(exact_model, max_context=256), requests)
    prompts = [_ids(length, seed // SHARING) for seed, (length, *_) in enumerate(requests)]
    batch = _batch(Step(prompt, each.token_ids, each.logprobs) for prompt, each in zip(prompts, done, strict=True))
    trained = _train_logprobs(exact_model, batch, max_tokens, temperature=0.8)
    assert trained.tolist() == batch.sampling_logprobs[batch.loss_mask].tolist()


@one_order_of_sums
@settings(max_examples=6, deadline=None)
@given(own=st.tuples(st.integers(1, 150), st.integers(1, 12), st.just(3)), others=requests_of_any_size)
def test_a_batched_response_equals_a_single_one(
    make_engine: Callable[..., LocalEngine], exact_model: Any, own: tuple[int, int, int], others: Requests
) -> None:
    separate = _responses(make_engine(exact_model, max_context=256), [own])[0]
    batched = _responses(make_engine(exact_model, max_context=256), [own, *others])[0]
    assert _bits(batched) == _bits(separate)


@one_order_of_sums
def test_a_conversation_has_the_bits_of_one_prompt(make_engine: Callable[..., LocalEngine], exact_model: Any) -> None:
    """The cache and the number of passes also change no bit."""
    prompt = _ids(70, 0)

    async def turns(lengths: Sequence[int]) -> list[Any]:
        engine = make_engine(exact_model, max_context=256)
        for length in lengths:
            done = await engine.generate(prompt[:length], SamplingParams(max_tokens=3, seed=1), session="s")
        return _bits(done)

    assert asyncio.run(turns([1, 2, 35, 36, 69, 70])) == asyncio.run(turns([70]))


@one_order_of_sums
def test_torch_attention_does_not_have_these_bits(make_engine: Callable[..., LocalEngine], model: Any) -> None:
    """So the tests above can fail."""
    plain = copy.deepcopy(model)
    use_torch_attention(plain)
    done = _responses(make_engine(plain, max_context=256), [(length, 60, 0) for length in (3, 70, 150)])
    batch = _batch(
        Step(_ids(length, seed // SHARING), each.token_ids, each.logprobs)
        for seed, (length, each) in enumerate(zip((3, 70, 150), done, strict=True))
    )
    differences = _train_logprobs(plain, batch, 2048, temperature=0.8) - batch.sampling_logprobs[batch.loss_mask]
    assert not is_exact(plain)
    assert 0 < np.abs(differences).max() < 1e-4


def test_a_caller_s_mask_and_cache_are_obeyed(grouped_model: Any) -> None:
    """transformers pads on the left, and its own cache has no slots."""
    plain = copy.deepcopy(grouped_model)
    use_torch_attention(plain)
    ids = torch.tensor([_ids(BLOCK + 6, 1), _ids(BLOCK + 6, 2)])
    mask = torch.ones_like(ids)
    mask[0, :30] = 0

    def continue_rows(model: Any) -> Tensor:
        options = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
        return torch.stack(model.generate(ids, attention_mask=mask, **options).logits)

    expected = continue_rows(plain)
    assert_close(continue_rows(grouped_model), expected, [expected.abs().max()], relative=5e-6)
