"""Warnings about weights below float32, and about logits where flash-attn is not installed."""

from __future__ import annotations

from typing import Any

import pytest

from rllm_core.notices import forget_warnings
from rllm_verl.checks import MODEL_DTYPE, warn_of_weights_below_float32
from rllm_verl.fused import DERIVED_FUSED_KERNELS, FUSED, warn_of_logits

TOKENS = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"


@pytest.mark.parametrize(
    ("profile", "values", "told"),
    [(None, {}, False), ("megatron", {}, False), (None, {MODEL_DTYPE: "bf16"}, True)],
)
def test_weights_below_float32_are_a_warning(
    change: Any, capsys: pytest.CaptureFixture[str], profile: str | None, values: dict[str, Any], told: bool
) -> None:
    forget_warnings()
    warn_of_weights_below_float32(change(profile, values).native())
    assert ("AdamW" in capsys.readouterr().err) is told


@pytest.mark.parametrize(
    ("profile", "values", "flash", "said"),
    [
        (None, {FUSED: True}, False, f"{FUSED}=true"),
        (None, {FUSED: False}, True, ""),
        (None, {FUSED: False}, False, "15 GB for 16384 tokens"),
        (None, {FUSED: False, TOKENS: 4096}, False, "3.7 GB for 4096 tokens"),
        ("cpu", {}, False, ""),
        ("megatron", {}, False, ""),
    ],
)
def test_logits_without_flash_attention_are_warned_of(
    change: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    profile: str | None,
    values: dict[str, Any],
    flash: bool,
    said: str,
) -> None:
    monkeypatch.setattr("rllm_verl.fused.find_spec", lambda name: name if flash else None)
    forget_warnings()
    warn_of_logits(change(profile, values).native())
    printed = capsys.readouterr().err
    assert said in printed
    assert bool(printed) is bool(said)


def test_fused_kernels_are_used_without_flash_attention(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for flash, fused in ((None, True), ("flash_attn", False)):
        monkeypatch.setattr("rllm_verl.fused.find_spec", lambda name, flash=flash: flash)
        assert DERIVED_FUSED_KERNELS.derive("fsdp", "cuda") is DERIVED_FUSED_KERNELS.derive("fsdp2", "cuda") is fused
        assert DERIVED_FUSED_KERNELS.derive("fsdp2", "cpu") is DERIVED_FUSED_KERNELS.derive("megatron", "cuda") is False
    monkeypatch.setattr("rllm_verl.fused.find_spec", lambda name: None)
    composed = run("rllm.trainer.project_name=without-flash")
    assert composed.value(FUSED) is True
