"""The sampler of a worker, constrained to JSON schemas, on fakes with the sampler's methods."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from byte_tokenizer import byte_tokenizer
from torch import Tensor

from rllm_backend_kit.grammars import Grammars
from rllm_vllm.messages import SCHEMA, Marks
from rllm_vllm.worker import constrain

TOKENIZER = byte_tokenizer()
END: int = TOKENIZER.eos_token_id
SIZE = len(TOKENIZER)
SAYS_LEFT = TOKENIZER.encode('"left"', add_special_tokens=False)


class Sampler:
    """vLLM's sampler of model runner V1, which draws the likeliest token."""

    topk_topp_sampler = object()

    def sample(self, logits: Tensor, metadata: Any) -> tuple[Tensor, Tensor]:
        return logits.argmax(-1), logits.log_softmax(-1)


def runner(schemas: list[str | None]) -> Any:
    """A worker's model runner with a request per schema."""
    requests = {}
    for at, schema in enumerate(schemas):
        params = SimpleNamespace(extra_args=None if schema is None else {SCHEMA: schema})
        requests[str(at)] = SimpleNamespace(sampling_params=params, prompt_token_ids=[7], output_token_ids=[])
    return SimpleNamespace(sampler=Sampler(), requests=requests, input_batch=SimpleNamespace(req_ids=list(requests)))


def make_sampler(schemas: list[str | None]) -> Any:
    made = runner(schemas)
    assert constrain(made, Grammars(TOKENIZER, SIZE, Marks((END,), None)))
    return made


def step(made: Any, logits: Tensor, temperature: Tensor | None = None) -> tuple[list[int], Tensor]:
    metadata = SimpleNamespace(all_greedy=temperature is None, temperature=temperature)
    tokens, logprobs = made.sampler.sample(logits, metadata)
    return tokens.tolist(), logprobs


LEFT = '{"const": "left"}'
LOGITS = torch.linspace(-3, 3, 2 * SIZE).reshape(2, SIZE)


def test_constrained_rows_follow_their_schema() -> None:
    made, said = make_sampler([None, LEFT]), []
    for _ in (*SAYS_LEFT, END):
        (free, token), _ = step(made, LOGITS.clone())
        made.requests["1"].output_token_ids.append(-1)  # a placeholder, as in asynchronous scheduling
        said.append(token)
        assert free == SIZE - 1

    assert said == [*SAYS_LEFT, END]


@pytest.mark.parametrize("temperature", [None, torch.tensor([0.5, 0.7]), torch.tensor([0.0, 0.7])], ids=str)
def test_logprobs_are_those_before_the_mask(temperature: Tensor | None) -> None:
    _, logprobs = step(make_sampler([None, LEFT]), LOGITS.clone(), temperature)

    scale = torch.ones(2) if temperature is None else torch.where(temperature == 0, 1.0, temperature)
    assert torch.equal(logprobs, (LOGITS / scale[:, None]).log_softmax(-1))
    assert bool((logprobs > -math.inf).all())


def test_dropped_token_is_sampled_again() -> None:
    made = make_sampler([LEFT])
    found = [step(made, LOGITS[:1].clone())[0][0] for _ in range(2)]  # vLLM keeps neither
    made.requests["0"].output_token_ids.append(found[-1])

    assert found == [SAYS_LEFT[0]] * 2
    assert step(made, LOGITS[:1].clone())[0] == [SAYS_LEFT[1]]


def test_requests_may_change_their_rows() -> None:
    made = make_sampler([LEFT, None])
    step(made, LOGITS.clone())
    made.requests["0"].output_token_ids.append(SAYS_LEFT[0])
    made.input_batch.req_ids.reverse()

    assert step(made, LOGITS.clone())[0] == [SIZE - 1, SAYS_LEFT[1]]


def test_samplers_without_a_place_for_masks_are_unchanged() -> None:
    grammars = Grammars(TOKENIZER, SIZE, Marks((END,), None))
    second = SimpleNamespace(sampler=SimpleNamespace(sample=None))
    drafts = SimpleNamespace(sampler=Sampler(), rejection_sampler=object())

    assert not constrain(second, grammars)
    assert not constrain(drafts, grammars)
    assert "sample" not in vars(drafts.sampler)
