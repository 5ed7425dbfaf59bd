"""The exported model is whole: it loads by its directory, and it answers and ends its turn."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rllm_core.contracts.engine import SamplingParams
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_local.engine import LocalEngine
from rllm_local.model import load_model
from rllm_local.settings import ModelSection


def test_it_adds_two_numbers_and_ends_its_turn(smollm2: Path) -> None:
    loaded = load_model(ModelSection(name=str(smollm2)), seed=0)
    renderer = TemplateRenderer(loaded.tokenizer, loaded.stop_ids)
    prompt = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": "2 + 3 ="}], add_generation_prompt=True, return_dict=False
    )
    with ThreadPoolExecutor(1) as executor:
        engine = LocalEngine(
            loaded.model, renderer, executor, max_context=256, max_concurrency=4, kv_cache_bytes=1 << 26
        )
        answer = asyncio.run(engine.generate(prompt, SamplingParams(max_tokens=30, temperature=0.0), session="s"))
    assert answer.finish_reason == "stop"
    assert "2 + 3 = 5" in loaded.tokenizer.decode(answer.token_ids)
