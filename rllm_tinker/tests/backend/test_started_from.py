"""Saved weights are taken up only where they are what the configuration says."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError
from rllm_tinker.exchange import SavedModel
from rllm_tinker.settings import ModelSection
from rllm_tinker.state import check_saved_model

SAVED = SavedModel(base_model="tiny", lora_rank=8, train_unembed=True, train_attn=True, train_mlp=False)
PATH = "tinker://run/weights/x"


@pytest.mark.parametrize("asked", [{}, {"lora_rank": 8}, {"train_mlp": False}, {"lora_rank": 32, "train_mlp": True}])
def test_what_agrees_or_has_its_default_is_accepted(asked: dict[str, Any]) -> None:
    check_saved_model(SAVED, PATH, ModelSection(**asked), "tiny")


def test_properties_missing_in_response_are_not_compared() -> None:
    silent = SavedModel(base_model="tiny", lora_rank=None, train_unembed=None, train_attn=None, train_mlp=None)
    check_saved_model(silent, PATH, ModelSection(lora_rank=4), "tiny")


@pytest.mark.parametrize(
    ("asked", "base_model", "code", "values"),
    [
        ({}, "Qwen/Qwen3-8B", "checkpoint-of-other-model", ["'tiny'", "'Qwen/Qwen3-8B'", "model.name=tiny"]),
        ({"lora_rank": 64}, "tiny", "adapter-mismatch", ["model.lora_rank", 64, PATH, 8]),
        ({"train_unembed": False}, "tiny", "adapter-mismatch", ["model.train_unembed", False, PATH, True]),
    ],
)
def test_another_model_and_another_lora_are_refused(
    asked: dict[str, Any], base_model: str, code: str, values: list[object]
) -> None:
    with expect_error(ConfigError, code, *values):
        check_saved_model(SAVED, PATH, ModelSection(**asked), base_model)


def test_the_server_says_what_it_kept(connection: Any) -> None:
    path = connection.ask(connection.trainer(train_mlp=False).save("described"))
    assert connection.ask(connection.service.saved_model(path)) == SavedModel(
        base_model="tiny", lora_rank=4, train_unembed=True, train_attn=True, train_mlp=False
    )
