"""What vLLM is told on a CPU."""

from __future__ import annotations

from typing import Any

import pytest

from rllm_vllm.cpu import TOKENS_PER_PASS, cpu_arguments


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ({"max_model_len": 256}, TOKENS_PER_PASS),
        ({"max_model_len": 40_960}, 40_960),
        ({"max_model_len": 256, "max_num_batched_tokens": 512}, 512),
        ({"max_model_len": 256, "max_num_batched_tokens": 100}, 256),
        ({"max_model_len": 256, "max_num_batched_tokens": None, "enable_chunked_prefill": True}, TOKENS_PER_PASS),
    ],
)
def test_a_pass_contains_whole_prompts(given: dict[str, Any], tokens: int) -> None:
    found = cpu_arguments({"dtype": "float32", **given})
    assert found["enable_chunked_prefill"] is False
    assert found["max_num_batched_tokens"] == tokens
    assert found["dtype"] == "float32"
    assert found["enforce_eager"]
