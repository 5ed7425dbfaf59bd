"""A LoRA adapter is a model's name: what is opened is the model below it, and the adapter."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from expecting import expect_error
from safetensors.torch import save_file

from rllm_core.errors import ConfigError
from rllm_verl.adapters import find_adapter
from rllm_verl.model import Model, digest_of, open_model

CONFIG = {"base_model_name_or_path": "tiny", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}


def write(directory: Path, weight: float = 1.0, seed: int = 3, **config: object) -> Path:
    directory.mkdir(parents=True)
    (directory / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    (directory / "base.json").write_text(json.dumps({"name": "tiny", "seed": seed}))
    save_file({"weight": torch.full((2,), weight)}, directory / "adapter_model.safetensors")
    return directory


def open_adapter(name: Path, directory: Path) -> Model:
    directory.mkdir()
    return open_model(str(name), seed=0, directory=directory, without_thinking=False)


def test_adapter_of_checkpoint_opens_with_base_model(tmp_path: Path) -> None:
    write(tmp_path / "step_1" / "backend" / "model")
    model = open_adapter(tmp_path / "step_1", tmp_path / "opened")
    assert model.adapter is not None
    assert (model.adapter.rank, model.adapter.alpha, model.adapter.targets) == (4, 8, ["q_proj"])
    assert (model.name, model.seed) == ("tiny", 3)
    assert (Path(model.path) / "config.json").is_file()


def test_other_weights_in_either_give_another_digest(tmp_path: Path) -> None:
    adapters = [write(tmp_path / "a"), write(tmp_path / "b", weight=2.0), write(tmp_path / "c", seed=4)]
    digests = [open_adapter(adapter, tmp_path / f"opened {adapter.name}").digest for adapter in adapters]
    assert len(set(digests)) == 3
    assert digest_of(str(adapters[0])) is None


def test_an_adapter_without_its_base_is_refused(tmp_path: Path) -> None:
    with expect_error(ConfigError, "bad-adapter", tmp_path / "a", "base_model_name_or_path"):
        find_adapter(write(tmp_path / "a", base_model_name_or_path=None))


def test_a_whole_model_is_no_adapter(tmp_path: Path) -> None:
    (write(tmp_path / "a") / "config.json").write_text("{}")
    assert find_adapter(tmp_path / "a") is None
