"""Responses that must match a JSON schema."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import llguidance
import numpy as np
import pytest
import torch
from byte_tokenizer import END, THINK, byte_tokenizer
from expecting import expect_error

from rllm_backend_kit.grammars import Grammars
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.errors import UnsupportedSamplingError
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_local import tiny
from rllm_local.engine import LocalEngine
from rllm_local.forward import cache_bytes_per_token

PROMPT = [10, 20, 30]
PARTS = {"a": {"type": "integer", "minimum": -20, "maximum": 300}, "ü": {"type": "string", "maxLength": 4}}
OBJECT = {"type": "object", "properties": PARTS, "required": ["ü"], "additionalProperties": False}
SCHEMAS = [
    {"type": "string", "pattern": "^[a-c]{1,3}$"},
    {"anyOf": [{"enum": ["left", "right", 3]}, {"const": {"a": [1]}}]},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    OBJECT,
    {"type": "array", "items": {"anyOf": [OBJECT, {"type": "null"}]}, "maxItems": 2},
]


@pytest.fixture(scope="module")
def byte_engine(executor: Any) -> LocalEngine:
    """An engine on a random model of bytes."""
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    model = tiny.build_model(len(tokenizer) + 5, 0).eval()
    renderer = TemplateRenderer(tokenizer, [END])
    return LocalEngine(
        model,
        renderer,
        executor,
        max_context=512,
        max_concurrency=4,
        kv_cache_bytes=(1 << 14) * cache_bytes_per_token(model),
        grammars=Grammars(tokenizer, len(tokenizer) + 5, renderer),
    )


def sample(engine: Any, schema: Any, prompt: list[int] = PROMPT, **changes: Any) -> Completion:
    given = {"max_tokens": 120, "json_schema": json.dumps(schema)} | changes
    return asyncio.run(engine.generate(prompt, SamplingParams(**given), session=str(changes)))


def parse_json(engine: Any, completion: Completion) -> Any:
    """Return the JSON of a response, after its reasoning."""
    return json.loads(engine.renderer.parse(PROMPT, completion.token_ids).content)


@pytest.mark.long
@pytest.mark.parametrize(("seed", "schema"), [*enumerate(SCHEMAS)])
def test_response_with_schema_parses_and_validates(byte_engine: LocalEngine, schema: Any, seed: int) -> None:
    completion = sample(byte_engine, schema, seed=seed, top_p=0.9 if seed % 2 else 1.0, top_k=20 if seed % 3 else -1)

    if completion.finish_reason == "length":
        return  # the random model has found a long way to write white space
    assert completion.token_ids[-1] == END
    assert END not in completion.token_ids[:-1]
    jsonschema.validate(parse_json(byte_engine, completion), schema)


def test_constrained_logprobs_are_those_before_the_mask(byte_engine: LocalEngine) -> None:
    completion = sample(byte_engine, {"enum": ["left", "right"]}, seed=3, temperature=0.7)

    ids = torch.tensor([[*PROMPT, *completion.token_ids.tolist()]])
    with torch.no_grad():
        logits = byte_engine._model(input_ids=ids).logits[0, len(PROMPT) - 1 : -1]
    expected = torch.log_softmax(logits / 0.7, -1).gather(1, ids[0, len(PROMPT) :, None])[:, 0]
    np.testing.assert_allclose(completion.logprobs, expected.numpy(), atol=1e-4)
    assert (completion.logprobs < -1).any()  # the unconstrained model would not have written this


def test_open_reasoning_is_unconstrained_until_it_closes(byte_engine: LocalEngine) -> None:
    completion = sample(byte_engine, {"enum": ["left"]}, [*PROMPT, THINK[0]], seed=1, max_tokens=500)

    ids = completion.token_ids.tolist()
    answer = ids[ids.index(THINK[1]) + 1 :]
    assert ids.index(END) == len(ids) - 1
    assert json.loads(byte_engine.renderer.text(answer)) == "left"


def test_constrained_request_does_not_change_unconstrained_one(byte_engine: LocalEngine) -> None:
    async def both(schema: str | None) -> list[Completion]:
        asked = [SamplingParams(max_tokens=20, seed=5), SamplingParams(max_tokens=20, seed=6, json_schema=schema)]
        calls = [byte_engine.generate(PROMPT, each, session=str(at)) for at, each in enumerate(asked)]
        return await asyncio.gather(*calls)

    separate = asyncio.run(both(None))[0]
    together = asyncio.run(both('{"type": "object"}'))[0]

    np.testing.assert_array_equal(separate.token_ids, together.token_ids)


@pytest.mark.parametrize("schema", [{"not": {"type": "string"}}, {"type": "strin"}], ids=str)
def test_schema_that_cannot_be_used_is_refused(byte_engine: LocalEngine, schema: Any) -> None:
    with pytest.raises(UnsupportedSamplingError, match=r"Unimplemented keys|Invalid type"):
        sample(byte_engine, schema)


def test_threads_share_one_tokenizer(byte_engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    make = llguidance.LLTokenizer

    def slow(*args: Any, **kwargs: Any) -> Any:
        made.append(args)
        time.sleep(0.2)  # the other threads ask meanwhile
        return make(*args, **kwargs)

    monkeypatch.setattr(llguidance, "LLTokenizer", slow)
    tokenizer = byte_tokenizer()
    grammars = Grammars(tokenizer, len(tokenizer) + 5, byte_engine.renderer)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: grammars.of_schema("{}", np.array(PROMPT, np.int32)), range(4)))

    assert len(made) == 1


def test_missing_library_is_named_with_its_command(
    byte_engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, tokenizer: Any
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    grammars = Grammars(tokenizer, 10, byte_engine.renderer)

    with pytest.raises(UnsupportedSamplingError) as raised:
        grammars.of_schema("{}", np.array(PROMPT, np.int32))

    assert "pip install 'rllm-local[grammars]'" in str(raised.value)


def test_tokenizer_without_bytes_is_refused(tokenizer: Any, byte_engine: LocalEngine) -> None:
    with expect_error(UnsupportedSamplingError, "json-schema-not-supported", "tokenizer"):
        Grammars(tokenizer, len(tokenizer), byte_engine.renderer).of_schema("{}", np.array(PROMPT, np.int32))


def test_engine_without_grammars_refuses_a_schema(make_engine: Any) -> None:
    with pytest.raises(UnsupportedSamplingError, match="cannot constrain"):
        sample(make_engine(), {})


def test_likeliest_tokens_are_named_before_truncation(byte_engine: LocalEngine) -> None:
    sampling = SamplingParams(max_tokens=5, temperature=0.7, top_k=1, top_logprobs=3)
    completion = asyncio.run(byte_engine.generate(PROMPT, sampling, session="top"))

    assert completion.top is not None
    assert completion.top.ids.shape == (len(completion.token_ids), 3)
    np.testing.assert_array_equal(completion.top.ids[:, 0], completion.token_ids)
    np.testing.assert_array_equal(completion.top.logprobs[:, 0], completion.logprobs)
    assert (np.diff(completion.top.logprobs) <= 0).all()
    assert (completion.top.logprobs > -np.inf).all()
