"""Rejection rules, importance weights and metrics of rollout correction equal verl's and TRL's."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import peers
import pytest
import torch

from rllm.config.choices import PRESETS
from rllm_backend_kit.loss import LossTerms, loss_terms, rollout_weights
from rllm_backend_kit.rejection import find_rejected_tokens
from rllm_backend_kit.update_metrics import Means, note_rollout
from rllm_core.contracts.backend import RolloutCorrection, UpdatePlan

from .conftest import draw_rows, token_losses

RULES = [
    *(f"{scope}_{estimate}" for scope in ("token", "seq_sum", "seq_mean") for estimate in ("k1", "k2", "k3")),
    *("seq_max_k2", "seq_max_k3"),
]
BATCHES = range(300)


def columns(batch: Any) -> Any:
    """Return the arguments of `rejected`, with `ref` as the sampler."""
    inputs = batch.inputs
    arrays = (each.detach().numpy() for each in (inputs.old_logprobs, inputs.ref_logprobs, inputs.advantages))
    return (*arrays, batch.lengths)


def apply_rules(batch: Any, rules: dict[str, Any]) -> Any:
    old, sampler, advantages, lengths = columns(batch)
    return find_rejected_tokens(old, sampler, advantages, lengths, rules)


def thresholds(seed: int, rules: list[str]) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        rule: [float(random.uniform(0.5, 1)), float(random.uniform(1, 1.5))]
        if rule.endswith("k1") and seed % 2
        else float(random.uniform(1.05, 1.5) if rule.endswith("k1") else random.uniform(0.01, 0.3))
        for rule in rules
    }


def as_verls(bounds: Any) -> str:
    return "_".join(map(str, bounds)) if isinstance(bounds, list) else str(bounds)


def test_rejected_tokens_are_verls(verl: Any) -> None:
    shares = []
    for seed in BATCHES:
        batch, padded = draw_rows(seed), draw_rows(seed).padded
        first = seed % len(RULES)
        rules = thresholds(seed, [RULES[first], RULES[(first + 1 + seed % 7) % len(RULES)]])
        masks = apply_rules(batch, rules)
        spec = ",".join(map(as_verls, rules.values()))
        kept, _ = verl.compute_rollout_rejection_mask(padded.old - padded.ref, padded.mask, ",".join(rules), spec)
        found = ~np.any(list(masks.values()), axis=0)
        assert found.tolist() == kept[padded.mask.bool()].bool().tolist(), (seed, rules)
        shares.append(found.mean())
    assert 0.1 < np.mean(shares) < 0.9


def test_weights_with_rejections_are_verls(verl: Any) -> None:
    for seed in BATCHES:
        batch, padded = draw_rows(seed), draw_rows(seed).padded
        mode: Literal["token", "sequence"] = "sequence" if seed % 2 else "token"
        correction = RolloutCorrection(
            mode=mode, cap=1.3, floor=0.0, beyond_cap="truncate", reject={"seq_mean_k1": (0.8, 1.2)}
        )
        plan = UpdatePlan(
            global_step=0, losses={}, aggregation="", entropy_coeff=0.0, seed=0, rollout_correction=correction
        )
        inputs = batch.inputs.at(torch.ones(len(batch.inputs.row_ids), dtype=torch.bool))
        inputs = type(inputs)(**vars(inputs) | {"sampling_logprobs": batch.inputs.ref_logprobs})
        log_ratio = padded.old - padded.ref
        kept, _ = verl.compute_rollout_rejection_mask(log_ratio, padded.mask, "seq_mean_k1", "0.8_1.2")
        weights, _ = verl.compute_rollout_correction_weights(log_ratio, padded.mask, mode, 1.3)
        expected = (weights * kept)[padded.mask.bool()]
        terms = loss_terms(inputs, plan)
        torch.testing.assert_close(terms.weights, expected, rtol=1e-6, atol=1e-6)
        ratios = (
            log_ratio if mode == "token" else (log_ratio * padded.mask).sum(1, keepdim=True) + 0 * log_ratio
        ).exp()
        assert terms.above_cap is not None
        assert terms.above_cap.tolist() == (ratios > 1.3)[padded.mask.bool()].tolist()


@pytest.mark.parametrize("mode", ["token-mean", "token-sum", "seq-mean-token-sum"])
def test_rejected_tokens_stay_in_the_divisor(verl: Any, mode: str) -> None:
    """verl removes them from the mask, so that token-mean divides by the other tokens."""
    for seed in range(8):
        batch = draw_rows(seed, n_rows=5)
        padded = batch.padded
        kept, _ = verl.compute_rollout_rejection_mask(padded.old - padded.ref, padded.mask, "token_k1", "0.8_1.2")
        settings = peers.ActorSettings(
            global_batch_info={"global_batch_size": 5},
            clip_ratio=0.2,
            clip_ratio_low=0.2,
            clip_ratio_high=0.2,
            clip_ratio_c=1e9,
        )
        loss, _ = verl.compute_policy_loss_vanilla(padded.old, padded.new, padded.advantages, kept, mode, settings)
        share = float(kept.sum() / padded.mask.sum()) if mode == "token-mean" else 1.0
        (masks,) = apply_rules(batch, {"token_k1": [0.8, 1.2]}).values()
        ours = batch.ours(token_losses("ppo", batch.inputs).masked_fill(torch.tensor(masks), 0.0), mode)
        torch.testing.assert_close(ours, tuple(share * each for each in batch.theirs(loss)), rtol=1e-6, atol=1e-8)


def test_m2po_is_its_formula() -> None:
    """Tokens are rejected one by one, the largest squared log-ratio first, until the mean of the others is small."""
    for seed in BATCHES:
        batch = draw_rows(seed)
        old, sampler, *_ = columns(batch)
        squares, threshold = (old - sampler) ** 2, float(np.random.default_rng(seed).uniform(0.01, 0.5))
        kept = np.argsort(squares)
        while len(kept) and squares[kept].mean() >= threshold:
            kept = kept[:-1]
        (found,) = apply_rules(batch, {"m2po": threshold}).values()
        assert np.flatnonzero(~found).tolist() == sorted(kept.tolist())


def test_opsm_is_trls(trl: Any) -> None:
    for seed in BATCHES:
        batch = draw_rows(seed, advantage_per_row=True)
        padded = batch.padded
        kept = trl.off_policy_mask(padded.advantages[:, :1], padded.old, padded.ref, padded.mask, 0.1)
        expected = (kept.bool() | torch.zeros_like(padded.mask, dtype=torch.bool))[padded.mask.bool()]
        (found,) = apply_rules(batch, {"opsm": 0.1}).values()
        assert (~found).tolist() == expected.tolist()


@pytest.mark.parametrize("moved", [0, -17])
def test_metrics_are_verls(verl: Any, moved: float) -> None:
    """Also if squared ratios are near 1e-15, which a sum with 1 loses."""
    for seed in BATCHES:
        batch = draw_rows(seed)
        logprobs = batch.inputs.logprobs.detach() + moved
        inputs = replace(batch.inputs, sampling_logprobs=batch.inputs.ref_logprobs, logprobs=logprobs)
        means = Means()
        note_rollout(means, inputs)
        found = means.metrics()
        padded = batch.padded
        expected = verl.compute_offpolicy_metrics(padded.new.detach() + moved, padded.ref, padded.mask)
        for name in ("kl", "k3_kl", "ppl_ratio", "chi2_token", "chi2_seq"):
            assert found[f"rollout_corr/{name}"] == pytest.approx(expected[name], rel=1e-6, abs=1e-6), name
        ratio = (padded.new + moved - padded.ref).detach()[padded.mask.bool()].exp()
        effective = float(ratio.mean() ** 2 / ratio.square().mean())
        # Float32 rounds a log-ratio of -17 by 1e-6, so that its square has twice this relative error.
        assert found["rollout_corr/eff_sample_size"] == pytest.approx(effective, rel=1e-5 if moved else 1e-6)


def test_veto_and_kpop_are_their_formulas() -> None:
    for seed in range(100):
        batch = draw_rows(seed)
        old, sampler, _, lengths = columns(batch)
        ends = [0, *np.cumsum(lengths).tolist()]
        masks = apply_rules(batch, {"veto": [0.6, 1.9], "kpop": 0.05})
        for start, end in pairwise(ends):
            ratios = np.exp(old[start:end] - sampler[start:end])
            assert (masks["veto"][start:end] == bool(((ratios < 0.6) | (ratios > 1.9)).any())).all()
        for a, b, found in zip(old, sampler, masks["kpop"], strict=True):
            p, q = np.exp(a), np.exp(b)
            both = [x * np.log(x / y) + (1 - x) * np.log((1 - x) / (1 - y)) for x, y in ((p, q), (q, p))]
            assert bool(found) == (max(both) > 0.05)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_verls(verl: Any, name: str) -> None:
    """The preset's keys, translated, are the fields of verl's class method of this name."""
    theirs = vars(getattr(verl.presets, name)())
    ours = PRESETS[name]
    assert theirs.get("rollout_is") == ours.get("tis_mode")
    assert bool(theirs.get("bypass_mode")) == bool(ours.get("bypass_mode"))
    rules = ours.get("reject", {})
    assert theirs.get("rollout_rs") == (",".join(rules) or None)
    if rules:
        assert str(theirs["rollout_rs_threshold"]) == as_verls(*rules.values())
    if ours.get("tis_mode"):
        cap, floor = ours.get("tis_cap", 2.0), ours.get("tis_floor")
        assert theirs["rollout_is_threshold"] == (cap if floor is None else f"{floor}_{cap}")


def test_weights_are_one_without_rule_or_mode() -> None:
    batch = draw_rows(1)
    correction = RolloutCorrection(mode=None, cap=2.0, floor=0.5, beyond_cap="mask")
    found = rollout_weights(batch.inputs.old_logprobs, batch.inputs.ref_logprobs, batch.inputs.row_ids, correction)
    assert (found == 1).all()
    assert LossTerms(divergence=None, weights=None).rejected == {}


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("mode", ["token", "sequence"])
def test_weights_are_verls(verl: Any, mode: Literal["token", "sequence"], normalize: bool) -> None:
    for seed in BATCHES:
        inputs, padded = draw_rows(seed).inputs, draw_rows(seed).padded
        floor = 0.7 if seed % 2 else 0.0
        correction = RolloutCorrection(mode=mode, cap=1.3, floor=floor, beyond_cap="mask" if floor else "truncate")
        if normalize:
            correction = replace(correction, mean_weight=None)
        weights = rollout_weights(inputs.old_logprobs, inputs.ref_logprobs, inputs.row_ids, correction)
        threshold = f"{floor}_1.3" if floor else 1.3
        expected, _ = verl.compute_rollout_correction_weights(
            padded.old - padded.ref, padded.mask, mode, threshold, rollout_is_batch_normalize=normalize
        )
        torch.testing.assert_close(weights, expected[padded.mask.bool()], rtol=1e-6, atol=1e-6)
