"""Warnings about weights that are stored below float32."""

from __future__ import annotations

from typing import Any

import pytest

from rllm_core.notices import forget_warnings
from rllm_verl.checks import MODEL_DTYPE, warn_of_weights_below_float32


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), False),
        (("rllm.profile=cpu",), False),
        (("rllm.profile=megatron",), False),
        ((f"{MODEL_DTYPE}=bf16",), True),
    ],
)
def test_weights_that_the_optimizer_moves_below_float32_are_warned_of(
    run: Any, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: bool
) -> None:
    forget_warnings()
    warn_of_weights_below_float32(run(*words).backend_config.native())
    assert ("AdamW" in capsys.readouterr().err) is told
