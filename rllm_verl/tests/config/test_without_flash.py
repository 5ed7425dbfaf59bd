"""What is chosen and said where flash-attn is not installed."""

from __future__ import annotations

from typing import Any

import pytest

from rllm_core.notices import forget_warnings
from rllm_verl.fused import FUSED, warn_of_logits


@pytest.mark.parametrize(
    ("words", "flash", "fused", "said"),
    [
        ((), False, True, f"{FUSED}=true"),
        ((), True, False, ""),
        ((f"{FUSED}=false",), False, False, "15 GB for 16384 tokens"),
        (
            (f"{FUSED}=false", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096"),
            False,
            False,
            "3.7 GB for 4096 tokens",
        ),
        (("rllm.profile=cpu",), False, False, ""),
        (("rllm.profile=megatron",), False, False, ""),
    ],
)
def test_log_probs_are_computed_without_all_logits(
    run: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    flash: bool,
    fused: bool,
    said: str,
) -> None:
    monkeypatch.setattr("rllm_verl.fused.find_spec", lambda name: name if flash else None)
    forget_warnings()
    composed = run(*words)
    assert composed.value(FUSED) is fused
    warn_of_logits(composed.backend_config.native())
    printed = capsys.readouterr().err
    assert said in printed
    assert bool(printed) is bool(said)
