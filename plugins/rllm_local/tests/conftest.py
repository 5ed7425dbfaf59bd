"""Small models made in code, engines on them, and the plain computations they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from local_models import build_tiny, sharpen

from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_local import engine as engine_module, tiny
from rllm_local.engine import LocalEngine
from rllm_local.forward import cache_bytes_per_token

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return tiny.build_tokenizer()


@pytest.fixture(scope="session")
def model() -> Any:
    """The tiny model. Shared: tests that change weights build their own."""
    return build_tiny(0)


SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
LIMITS = {"max_position_embeddings": 256, "bos_token_id": None, "pad_token_id": 0, "eos_token_id": 2}


@pytest.fixture(scope="session")
def grouped_model(tokenizer: Any) -> Any:
    """A Llama whose four query heads share two key and value heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    own = {"num_hidden_layers": 3, "num_key_value_heads": 2, "vocab_size": len(tokenizer)}
    return sharpen(LlamaForCausalLM(LlamaConfig(**own, **SIZES, **LIMITS)))


@pytest.fixture(scope="session")
def qwen_model(tokenizer: Any) -> Any:
    """A Qwen3: grouped heads with their own size, normalized queries and keys."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(2)
    own = {"num_hidden_layers": 2, "num_key_value_heads": 1, "head_dim": 24, "vocab_size": len(tokenizer)}
    return sharpen(Qwen3ForCausalLM(Qwen3Config(**own, **SIZES, **LIMITS)))


@pytest.fixture(scope="session")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield pool


@pytest.fixture(scope="session")
def make_engine(model: Any, tokenizer: Any, executor: ThreadPoolExecutor) -> Callable[..., LocalEngine]:
    """An engine. `cache_tokens` is the number of tokens that fit into its memory for keys and values."""

    def make(
        of: Any = None,
        *,
        stop_ids: Sequence[int] = (),
        max_context: int = 512,
        max_concurrency: int = 64,
        cache_tokens: int = 1 << 20,
    ) -> LocalEngine:
        of = model if of is None else of
        return LocalEngine(
            of,
            TemplateRenderer(tokenizer, stop_ids),
            executor,
            max_context=max_context,
            max_concurrency=max_concurrency,
            kv_cache_bytes=cache_tokens * cache_bytes_per_token(of),
        )

    return make


@dataclass
class Passes:
    """Forward passes of the engine: one entry per pass, with the number of new tokens of each row."""

    rows: list[list[int]]

    @property
    def tokens(self) -> int:
        return sum(sum(row) for row in self.rows)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    """Counts the tokens that go through the model, which stays real."""
    seen = Passes([])
    real = engine_module.sample_next

    def counting(model: Any, cache: Any, rows: Any) -> Any:
        seen.rows.append([len(row.fresh) for row in rows])
        return real(model, cache, rows)

    monkeypatch.setattr(engine_module, "sample_next", counting)
    return seen
