"""Renderer and longest context of a run before the cluster starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rllm_core.contracts.backend import RunContext
from rllm_core.schema.run_config import RunConfig
from rllm_local import tiny
from rllm_verl.plugin import early_renderer

MODEL = "actor_rollout_ref.model.path"
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 64,
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("of_model", "keys", "longest"),
    [
        ({}, {}, 512),
        ({}, {"actor_rollout_ref.rollout.max_model_len": 99}, 99),
        ({"rope_parameters": LONGROPE}, {}, 64),
    ],
    ids=str,
)
def test_context_is_the_smallest_limit(
    of_model: dict[str, Any], keys: dict[str, Any], longest: int, change: Any, tmp_path: Path
) -> None:
    tokenizer = tiny.build_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    config = tiny.build_model(len(tokenizer), 0).config
    type(config)(**(config.to_dict() | of_model)).save_pretrained(tmp_path)
    settings = change("cpu", {MODEL: str(tmp_path)} | keys)
    found = early_renderer(RunContext(config=RunConfig(), backend_config=settings, seed=0, total_steps=1))
    assert found is not None
    renderer, max_context = found
    assert max_context == longest
    assert renderer.prompt([{"role": "user", "content": "guess"}]).tolist() == tokenizer.encode("guess")
