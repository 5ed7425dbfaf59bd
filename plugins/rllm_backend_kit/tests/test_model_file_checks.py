"""Missing and damaged files of a model are found before it is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from expecting import expect_error
from safetensors.numpy import save_file

from rllm_backend_kit.model_file_checks import check_model_files, check_whole_model
from rllm_core.errors import ConfigError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 135\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text("{}")
    save_file({"weight": np.zeros(100)}, tmp_path / WEIGHTS)
    return tmp_path


def split_weights(model: Path) -> None:
    (model / WEIGHTS).rename(model / "model-1.safetensors")
    (model / INDEX).write_text(
        json.dumps({"weight_map": {"weight": "model-1.safetensors", "b": "model-2.safetensors"}})
    )


def replace(name: str, content: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda model: (model / name).write_bytes(content((model / name).read_bytes()))


def test_whole_model_is_accepted(model: Path) -> None:
    check_model_files("model.name='m'", model)
    split_weights(model)
    save_file({"b": np.zeros(1)}, model / "model-2.safetensors")
    check_model_files("model.name='m'", model)


def test_tokenizer_of_bytes_needs_no_vocabulary(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    check_model_files("model.name='m'", model)


@pytest.mark.parametrize(
    ("change", "values"),
    [
        (lambda model: (model / "tokenizer.json").unlink(), ["no tokenizer", "Copy tokenizer.json"]),
        (lambda model: (model / WEIGHTS).unlink(), ["no weights", WEIGHTS]),
        (split_weights, ["model-2.safetensors is missing", INDEX]),
        (replace(WEIGHTS, lambda content: content[:-1]), [f"{WEIGHTS} has ", " of ", f"save {WEIGHTS} again"]),
        (replace(WEIGHTS, lambda content: content + b"x"), [f"{WEIGHTS} has "]),
        (replace(WEIGHTS, lambda content: content[:20]), [f"{WEIGHTS} has 20 bytes"]),
        (replace(WEIGHTS, lambda content: b""), [f"{WEIGHTS} has 0 bytes"]),
        (replace(WEIGHTS, lambda content: content[:8] + b"x" * (len(content) - 8)), [f"{WEIGHTS} has no readable"]),
        (replace(WEIGHTS, lambda content: POINTER), [f"{WEIGHTS} is a pointer", "lfs pull"]),
        (replace("tokenizer.json", lambda content: POINTER), ["tokenizer.json is a pointer"]),
        (replace("config.json", lambda content: b"{"), ["config.json is not a JSON"]),
    ],
)
def test_damaged_file_is_named(change: Callable[[Path], object], values: list[str], model: Path) -> None:
    change(model)
    with expect_error(ConfigError, "model-not-loadable", "model.name='m'", *values):
        check_model_files("model.name='m'", model)


def test_only_a_config_passes_until_it_is_loaded(model: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", WEIGHTS):
        (model / name).unlink()
    check_model_files("model.name='m'", model)
    with expect_error(ConfigError, "model-not-loadable", "no tokenizer"):
        check_whole_model("model.name='m'", model)
