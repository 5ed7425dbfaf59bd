"""Weights on their way: every tensor as it is, in files of bounded size, and nothing left behind."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from rllm_vllm import engine as module
from rllm_vllm.engine import weight_files
from rllm_vllm.worker import RllmWorker, _tensors


@pytest.mark.parametrize("in_memory", [True, False])
def test_every_tensor_arrives_unchanged(in_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", 1000)
    if not in_memory:
        monkeypatch.setattr(module, "IN_MEMORY", tmp_path / "no-such-place")
    weights = {f"layer.{index}": torch.randn(index + 1, 20) for index in range(9)}
    weights |= {"turned": torch.randn(4, 6).T, "half": torch.ones(3, dtype=torch.bfloat16)}
    with weight_files(weights.items()) as directory:
        files = sorted(directory.iterdir())
        arrived = dict(_tensors(directory))
        assert len(files) > 3
        assert max(path.stat().st_size for path in files) < 2000
    assert not directory.exists()
    assert arrived.keys() == weights.keys()
    assert all(torch.equal(arrived[name], weights[name]) for name in weights)


def test_files_are_on_disk_if_memory_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_MEMORY", tmp_path)
    assert module._place(1000) == tmp_path
    assert module._place(1 << 60) is None


def test_weights_that_are_missing_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(torch.nn.Linear):
        def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> set[str]:
            return {name for name, _ in weights}

    config = ModuleType("vllm.config")
    config.set_current_vllm_config = lambda _: contextlib.nullcontext()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.config", config)
    worker = RllmWorker()
    worker.vllm_config, worker.model_runner = None, SimpleNamespace(get_model=lambda: Model(2, 2))
    with weight_files([("weight", torch.ones(2, 2))]) as directory, pytest.raises(ValueError, match=r"1 weights.*bias"):
        worker.rllm_load_weights(str(directory))
