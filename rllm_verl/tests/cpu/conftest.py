"""A tiny model in a directory, and rollout servers of it inside this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rllm_local import tiny
from rllm_verl.cpu.messages import ServerSettings

SEED = 3
Weights = dict[str, NDArray[np.float32]]


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory of the model `tiny`."""
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("model")
    tokenizer = tiny.build_tokenizer()
    tokenizer.save_pretrained(directory)
    tiny.build_model(len(tokenizer), SEED).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def settings(model_directory: Path) -> ServerSettings:
    """Settings of a server of that model."""
    return ServerSettings(
        model=str(model_directory),
        max_context=64,
        max_concurrency=32,
        kv_cache_bytes=1 << 24,
    )


@pytest.fixture
def first_weights() -> Weights:
    """The weights in that directory."""
    return _weights(SEED)


@pytest.fixture
def other_weights() -> Weights:
    """Weights of the same architecture, drawn with another seed."""
    return _weights(SEED + 1)


def _weights(seed: int) -> Weights:
    model = tiny.build_model(len(tiny.build_tokenizer()), seed)
    return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
