"""A small model whose head size vLLM's CPU kernels know, and vLLM sampling from it. Starting vLLM takes a minute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from heads_of_32 import MAX_CONTEXT, save_model

from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.renderer import Renderer
from rllm_core.plugins.registry import Registry
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_local.engine import LocalEngine
from rllm_local.model import LoadedModel, load_model
from rllm_local.samplers import HostedSampler
from rllm_local.settings import LocalConfig, LocalSection, ModelSection
from rllm_vllm.engine import VllmEngine
from rllm_vllm.options import VllmOptions

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny32")
    save_model(path)
    return path


@pytest.fixture(scope="session")
def loaded_model(directory: Path) -> LoadedModel:
    """The model that vLLM serves. It is shared: a test that changes its weights syncs them."""
    return load_model(ModelSection(name=str(directory), device="cpu"), 0)


@pytest.fixture(scope="session")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield pool


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    """The event loop of everything that shares an engine."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def renderer(loaded_model: LoadedModel) -> Renderer:
    return TemplateRenderer(loaded_model.tokenizer, loaded_model.stop_ids)


@pytest.fixture(scope="session")
def make_hosting(loaded_model: LoadedModel) -> Callable[..., HostedSampler]:
    """The engine `vllm` as the local backend hosts it, not started; keyword arguments are its options."""

    def make(**options: Any) -> HostedSampler:
        entry = Registry.load().get("engine", "vllm")
        params = VllmOptions(**options)
        choice = PluginChoice(registered=entry, params=params)
        return HostedSampler(choice, loaded_model, asyncio.to_thread)

    return make


@pytest.fixture(scope="session")
def settings() -> LocalConfig:
    return LocalConfig(local=LocalSection(max_concurrency=32, kv_cache_gib=0.25))


@pytest.fixture(scope="session")
def hosting(
    make_hosting: Callable[..., HostedSampler], runner: asyncio.Runner, renderer: Renderer, settings: LocalConfig
) -> Iterator[HostedSampler]:
    """vLLM with the model's weights."""
    hosting = make_hosting()
    try:
        runner.run(hosting.start(renderer, MAX_CONTEXT, settings))
        yield hosting
    finally:
        runner.run(hosting.close())


@pytest.fixture(scope="session")
def vllm(hosting: HostedSampler) -> VllmEngine:
    assert isinstance(hosting.engine, VllmEngine)
    return hosting.engine


@pytest.fixture
def own_engine(loaded_model: LoadedModel, renderer: Renderer, executor: ThreadPoolExecutor) -> LocalEngine:
    """The local backend's own engine on the same model."""
    return LocalEngine(
        loaded_model.model, renderer, executor, max_context=MAX_CONTEXT, max_concurrency=32, kv_cache_bytes=1 << 26
    )


@pytest.fixture(scope="session")
def plain_logprobs(loaded_model: LoadedModel) -> Callable[..., np.ndarray]:
    """Log-probs of a response by one forward pass of transformers, without a cache."""

    def compute(prompt: list[int], response: list[int], temperature: float) -> np.ndarray:
        with torch.inference_mode():
            logits = loaded_model.model(input_ids=torch.tensor([prompt + response]), use_cache=False).logits[0]
        logprobs = torch.log_softmax(logits[len(prompt) - 1 : -1].double() / (temperature or 1.0), dim=-1)
        return logprobs[torch.arange(len(response)), torch.tensor(response)].numpy()

    return compute
