"""Weights are known by what their files hold."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rllm.evaluation.metadata import find_weights


def digest(directory: Path) -> str:
    weights = find_weights(str(directory))
    assert weights is not None
    return weights.sha256


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(b"weights")
    (directory / "config.json").write_text("{}")
    return directory


def test_the_same_files_elsewhere_are_the_same_weights(model: Path, tmp_path: Path) -> None:
    other = shutil.copytree(model, tmp_path / "run" / "checkpoints" / "latest" / "backend" / "model")
    assert digest(model) == digest(other) == digest(other.parents[1])


def test_other_bytes_are_other_weights(model: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"adapter")
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(model)}))
    before, adapted = digest(model), digest(adapter)
    (model / "README.md").write_text("about it")
    assert digest(model) == before
    (model / "model.safetensors").write_bytes(b"Weights")
    assert digest(model) != before
    assert digest(adapter) != adapted  # It counts with the model below.


def test_weights_of_a_service_have_a_path(tmp_path: Path) -> None:
    (tmp_path / "backend").mkdir()
    digests = set()
    for name in ("one", "other"):
        (tmp_path / "backend" / "tinker.json").write_text(f'{{"path": "tinker://x:train:0/weights/{name}"}}')
        digests.add(digest(tmp_path))
    assert len(digests) == 2


@pytest.mark.parametrize("name", ["tiny", "Qwen/Qwen3-8B", "http://127.0.0.1:8000/v1", "."])
def test_a_name_without_weights_has_none(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_weights(name) is None
