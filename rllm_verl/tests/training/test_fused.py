"""verl's fused kernels: the numbers of plain log-probs, for the models that they are used for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from omegaconf import OmegaConf

from rllm_core.contracts.backend import KlTerm
from rllm_core.notices import forget_warnings
from rllm_verl.columns import ColumnSettings, fill_columns
from rllm_verl.fused import PLAIN_HEADS, resolve_fused_kernels
from rllm_verl.rows import MicroBatching

from .conftest import RAGGED, SMALL, make_plan, make_updater, random_batch

FURTHER: dict[str, dict[str, Any]] = {
    "deepseek_v3": {"n_group": 1, "topk_group": 1, "n_routed_experts": 4, "num_experts_per_tok": 2}
    | {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "qk_nope_head_dim": 8}
    | {"moe_intermediate_size": 16, "num_key_value_heads": 4},
    "granite": {"logits_scaling": 3.0},
} | {name: {"head_dim": 8} for name in ("gemma", "gemma2", "gemma3_text", "mistral", "qwen3", "qwen3_moe")}
USUAL = ("gemma3_text", "llama", "mistral", "qwen2", "qwen3_moe")
WRONG = ("cohere", "gemma2", "granite", "phi")
"""Models that scale, bound or shift what `lm_head` gives."""


@pytest.mark.parametrize(
    "model_type",
    [pytest.param(each, marks=[pytest.mark.long] * (each not in USUAL)) for each in sorted(PLAIN_HEADS)] + [*WRONG],
)
def test_fused_log_probs_equal_the_model(model_type: str) -> None:
    """As transformers has them, at a temperature."""
    from verl.models.transformers.dense_common import forward_with_torch_backend

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **SMALL | FURTHER.get(model_type, {}))
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    ids, positions = torch.randint(3, 64, (1, 12)), torch.arange(12)[None]
    given: dict[str, Any] = {"input_ids": ids, "position_ids": positions, "use_cache": False}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.15)
        logits = model(**given).logits[0] / 0.7
        fused = forward_with_torch_backend(
            model, **given, return_dict=True, temperature=0.7, shift_labels=ids.roll(-1, 1)
        ).log_probs[0]
    difference = (fused[:-1] - logits.log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]).abs().max()
    assert (difference < 1e-5) == (model_type in PLAIN_HEADS)


@pytest.mark.long
@pytest.mark.parametrize("cut", [{"rows": 2}, {"tokens": 100}], ids=str)
def test_updates_and_columns_are_those_without_fused_kernels(
    cut: dict[str, int], one_rank: Any, fused_group: Any
) -> None:
    batch = random_batch(RAGGED, temperature=0.7)
    plan = make_plan(entropy_coeff=0.1, kl=KlTerm(beta=0.1, estimator="k3"))
    micro = MicroBatching(rows=cut.get("rows", 1), max_tokens=cut.get("tokens"))
    settings = ColumnSettings(temperature=0.7, recompute_old_logprobs=True, micro_batching=micro)
    results = []
    for group in (one_rank, fused_group):
        filled = fill_columns(group.restart(**cut), batch, frozenset(), settings)
        metrics = make_updater(temperature=0.7, num_epochs=2, **cut).update(group, batch, plan).metrics
        results.append((filled.old_logprobs, metrics, group.weights()))
    (logprobs, metrics, weights), (logprobs_of_fused, metrics_of_fused, weights_of_fused) = results
    np.testing.assert_allclose(logprobs_of_fused, logprobs, atol=1e-5)
    # The mean square of a product over a row's tokens has twice the relative error of all of them.
    chi2 = "rollout_corr/chi2_seq"
    tokens = max(sum(response for _, response in row) for row in RAGGED)
    expected, found = dict(metrics), dict(metrics_of_fused)
    assert found.pop(chi2) == pytest.approx(expected.pop(chi2), rel=2e-5 * tokens)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)
    torch.testing.assert_close(weights_of_fused, weights, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("model_type", "softcap", "needs", "kept"),
    [
        ("llama", None, frozenset(), True),
        ("qwen3_vl", None, frozenset({"ref_logprobs"}), True),
        ("llama", None, frozenset({"sum_pi_squared"}), False),
        ("gemma3_text", 30.0, frozenset(), False),
        ("granite", None, frozenset(), False),
    ],
)
def test_wrong_fused_kernels_are_off_with_a_warning(
    model_type: str,
    softcap: float | None,
    needs: frozenset[str],
    kept: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("rllm_verl.fused.find_spec", lambda name: None)
    forget_warnings()
    role = {
        "model": {"use_fused_kernels": True},
        "actor": {"strategy": "fsdp2", "use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 16384},
    }
    native = OmegaConf.create({"actor_rollout_ref": role, "trainer": {"device": "cuda"}})
    resolve_fused_kernels(native, model_type=model_type, softcap=softcap, vocabulary=152_000, needs=needs)
    assert native.actor_rollout_ref.model.use_fused_kernels is kept
    said = capsys.readouterr().err
    assert ("use_fused_kernels`" in said) is not kept
    assert ("15 GB for 16384 tokens" in said) is not kept
