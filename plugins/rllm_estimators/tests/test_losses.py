"""Every loss against its formula in plain Python, its gradient against finite differences, and by hand."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from rllm_core.contracts.loss import LossInput
from rllm_estimators.options import (
    A2poLossParams,
    CispoParams,
    ClipCovParams,
    DppoParams,
    DroParams,
    FipoParams,
    GmpoParams,
    GspoParams,
    IpoParams,
    KlCovParams,
    ReinforceKlParams,
    SapoParams,
    ToprParams,
    VespoParams,
)
from rllm_estimators.plugin import rllm_losses

LOSSES: dict[str, Any] = {record.name: record.load() for record in rllm_losses()}
OPTIONS: dict[str, Any] = {
    "a2po": A2poLossParams(beta=0.5),
    "cispo": CispoParams(eps_clip=0.3, eps_clip_high=0.5),
    "dppo_tv": DppoParams(max_divergence=0.05, max_divergence_high=0.1, clip_ratio_c=1.5, kl_tau=0.2),
    "dppo_kl": DppoParams(max_divergence=0.01, max_divergence_high=0.05, clip_ratio_c=1.5),
    "dro": DroParams(beta=0.3),
    "sapo": SapoParams(tau_positive=1.5, tau_negative=2.5),
    "gspo": GspoParams(sequence_eps_clip=0.1, sequence_eps_clip_high=0.2),
    "gmpo": GmpoParams(log_ratio_clip=0.3, log_ratio_clip_high=0.4),
    # Every token that may be chosen is.
    "kl_cov": KlCovParams(kl_cov_ratio=1.0, ppo_kl_coef=0.7),
    "clip_cov": ClipCovParams(clip_cov_ratio=1.0, clip_cov_lb=0.2, clip_cov_ub=1.0, eps_clip=0.3),
    "vespo": VespoParams(),
    "topr": ToprParams(),
    "ipo": IpoParams(max_divergence=0.1, kl_tau=0.2),
    "reinforce_kl": ReinforceKlParams(fwd_kl_coef=0.4, bwd_kl_coef=0.3, ratio_clamp_min=0.6, ratio_clamp_max=1.5),
    "fipo": FipoParams(eps_clip=0.3, half_life=2.0, max_influence=0.4),
}
"""Bounds near enough for random tokens to lie on both sides."""

Numbers = list[float]


def one_per_row(values: Numbers, rows: list[int]) -> Numbers:
    """The mean over each token's row."""
    means = {}
    for row, tokens in groupby(range(len(rows)), key=rows.__getitem__):
        inside = [values[token] for token in tokens]
        means[row] = sum(inside) / len(inside)
    return [means[row] for row in rows]


def clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def formula(name: str, new: Numbers, old: Numbers, advantages: Numbers, rows: list[int], held: Numbers) -> Numbers:
    """The loss of each token, token by token; `held` are the log-probs where the paper stops the gradient."""
    logs = [a - b for a, b in zip(new, old, strict=True)]
    mean_log = one_per_row([a - b for a, b in zip(held, old, strict=True)], rows)
    mean_held, mean_advantage = one_per_row(held, rows), one_per_row(advantages, rows)

    def cut(log: float, advantage: float) -> float:
        return min(log, 0.4) if advantage > 0 else max(log, -0.3) if advantage < 0 else 0.0

    geometric = one_per_row([cut(*pair) for pair in zip(logs, advantages, strict=True)], rows)
    losses = []
    for i, (lp, log, a) in enumerate(zip(new, logs, advantages, strict=True)):
        rho, rho_held = math.exp(log), math.exp(held[i] - old[i])
        p, q = math.exp(held[i]), math.exp(old[i])
        covariance = a * (held[i] - mean_held[i])
        match name:
            case "a2po":  # the old policy is the reference
                log_of_row = sum(change for change, row in zip(logs, rows, strict=True) if row == rows[i])
                loss = (0.5 * log_of_row - mean_advantage[i]) ** 2 / rows.count(rows[i])
            case "cispo":
                loss = -clip(rho_held, 0.7, 1.5) * a * lp
            case "dppo_tv":
                keep = p - q <= 0.1 if a > 0 else q - p <= 0.05
                loss = -a * min(rho_held, 1.5) * lp * keep + 0.2 * log**2
            case "dppo_kl":
                kl = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
                keep = (kl <= 0.05 or p <= q) if a > 0 else (kl <= 0.01 or p >= q)
                loss = -a * min(rho_held, 1.5) * lp * keep
            case "dro":
                loss = -(lp * a - 0.15 * log**2)
            case "sapo":
                tau = 1.5 if a > 0 else 2.5
                loss = -a * 4 / tau / (1 + math.exp(-tau * (rho - 1)))
            case "gspo":
                s = math.exp(mean_log[i]) * math.exp(lp - held[i])
                loss = max(-a * s, -a * clip(s, 0.9, 1.2))
            case "gmpo":
                loss = -mean_advantage[i] * math.exp(geometric[i])
            case "vespo":
                k, decay = (2, 3) if a >= 0 else (3, 2)
                w = math.exp(mean_log[i] * rows.count(rows[i]))
                loss = -math.exp(decay) * w**k * math.exp(-decay * w) * a * lp
            case "topr":
                w = math.exp(mean_log[i] * rows.count(rows[i]))
                loss = -a * lp if a > 0 else -min(w, 1) * a * lp
            case "ipo":
                loss = -a * rho * (abs(p - q) <= 0.1) + 0.2 * log**2
            case "reinforce_kl":
                loss = -clip(rho_held, 0.6, 1.5) * a * lp + 0.4 * (rho * log - rho + 1) + 0.3 * (rho - 1 - log)
            case "fipo":
                later = [held[j] - old[j] for j in range(i, len(held)) if rows[j] == rows[i]]
                future = sum(0.5 ** (n / 2) * change for n, change in enumerate(later))
                weighted = a * clip(math.exp(future), 1, 1.4)
                loss = max(-weighted * rho, -weighted * clip(rho, 0.7, 1.3))
            case "kl_cov":
                loss = -a * rho + (0.7 * abs(log) if covariance > 0 else 0)
            case _:
                outside = rho_held > 1.3 if a > 0 else rho_held < 0.7
                loss = 0.0 if 0.2 < covariance < 1 and not outside else max(-a * rho, -a * clip(rho, 0.7, 1.3))
        losses.append(loss)
    return losses


def tokens(seed: int, spread: float = 0.5) -> dict[str, Tensor]:
    """Some rows of random tokens in float64; the advantages of half of the batches are constant over each row."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 6, (4,), generator=generator)
    row_ids = torch.repeat_interleave(torch.tensor([7, 2, 3, 11]), lengths)

    def normal(count: int) -> Tensor:
        return torch.randn(count, generator=generator, dtype=torch.float64)

    old = -0.2 - normal(len(row_ids)).abs()
    new = (old + spread * normal(len(row_ids))).clamp(max=-0.01)
    advantages = normal(len(row_ids)) if seed % 2 else torch.repeat_interleave(normal(4), lengths)
    return {"logprobs": new, "old_logprobs": old, "advantages": advantages, "row_ids": row_ids}


def loss_input(columns: dict[str, Tensor]) -> LossInput:
    """The old policy is also the reference model."""
    return LossInput(**columns, ref_logprobs=columns["old_logprobs"])


def gradient(name: str, columns: dict[str, Tensor], weights: Tensor | float = 1.0) -> Tensor:
    logprobs = columns["logprobs"].clone().requires_grad_()
    (LOSSES[name](loss_input(columns | {"logprobs": logprobs}), OPTIONS[name]) * weights).sum().backward()
    assert logprobs.grad is not None
    return logprobs.grad


def by_formula(name: str, columns: dict[str, Tensor], logprobs: Tensor | None = None) -> Tensor:
    held, old, advantages, rows = (columns[key].tolist() for key in columns)
    new = held if logprobs is None else logprobs.tolist()
    return torch.tensor(formula(name, new, old, advantages, rows, held), dtype=torch.float64)


def test_there_is_a_formula_here_for_every_loss() -> None:
    assert set(LOSSES) == set(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
@given(seed=st.integers(0, 10**6))
@settings(derandomize=True)
def test_losses_are_their_formulas(name: str, seed: int) -> None:
    columns = tokens(seed)
    losses = LOSSES[name](loss_input(columns), OPTIONS[name])
    assert losses.dtype == torch.float64
    torch.testing.assert_close(losses, by_formula(name, columns), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", OPTIONS)
@given(seed=st.integers(0, 10**6))
@settings(derandomize=True)
def test_gradients_equal_finite_differences_of_the_formula(name: str, seed: int) -> None:
    columns, step = tokens(seed), 1e-7
    weights = torch.linspace(0.5, 1.5, len(columns["row_ids"]), dtype=torch.float64)
    differences = torch.zeros_like(weights)
    for token in range(len(weights)):
        shift = torch.zeros_like(weights)
        shift[token] = step
        above, below = (by_formula(name, columns, columns["logprobs"] + sign * shift) for sign in (1, -1))
        differences[token] = ((above - below) * weights).sum() / (2 * step)
    torch.testing.assert_close(gradient(name, columns, weights), differences, rtol=1e-6, atol=1e-6)


def one_token(name: str, ratio: float, advantage: float, params: Any) -> tuple[float, float]:
    """Loss and gradient of one token whose old probability is a half."""
    logprobs = torch.tensor([math.log(0.5 * ratio)], dtype=torch.float64, requires_grad=True)
    inputs = LossInput(
        logprobs=logprobs,
        old_logprobs=torch.tensor([math.log(0.5)], dtype=torch.float64),
        advantages=torch.tensor([advantage], dtype=torch.float64),
        row_ids=torch.tensor([0]),
    )
    loss = LOSSES[name](inputs, params)
    loss.sum().backward()
    assert logprobs.grad is not None
    return loss.item(), logprobs.grad.item()


LOG = math.log
CASES = [
    # The upper bound of cispo is 1 + eps_clip_high, not eps_clip_high; beyond it the gradient stays.
    ("cispo", CispoParams(eps_clip_high=0.3), 1.6, 1.0, -1.3 * LOG(0.8), -1.3),
    ("cispo", CispoParams(eps_clip_high=0.3), 0.5, -1.0, 0.8 * LOG(0.25), 0.8),
    ("cispo", CispoParams(eps_clip=1.0), 0.5, 1.0, -0.5 * LOG(0.25), -0.5),
    # p - q is ratio / 2 - 1 / 2.
    ("dppo_tv", DppoParams(max_divergence=0.1, max_divergence_high=0.2), 1.38, 1.0, -1.38 * LOG(0.69), -1.38),
    ("dppo_tv", DppoParams(max_divergence=0.1, max_divergence_high=0.2), 1.42, 1.0, 0.0, 0.0),
    ("dppo_tv", DppoParams(max_divergence=0.1, max_divergence_high=0.2), 1.42, -1.0, 1.42 * LOG(0.71), 1.42),
    ("dppo_tv", DppoParams(max_divergence=0.1, max_divergence_high=0.2), 0.82, -1.0, 0.82 * LOG(0.41), 0.82),
    ("dppo_tv", DppoParams(max_divergence=0.1, max_divergence_high=0.2), 0.78, -1.0, 0.0, 0.0),
    ("dppo_tv", DppoParams(max_divergence=0.6, clip_ratio_c=1.5), 1.9, 1.0, -1.5 * LOG(0.95), -1.5),
    # q = 1/2: KL = -ln(4 p (1 - p)) / 2, which is 0.020 at p = 0.6 and 0.204 at p = 0.79.
    ("dppo_kl", DppoParams(max_divergence=0.01, max_divergence_high=0.03), 1.2, 1.0, -1.2 * LOG(0.6), -1.2),
    ("dppo_kl", DppoParams(max_divergence=0.01, max_divergence_high=0.015), 1.2, 1.0, 0.0, 0.0),
    ("dppo_kl", DppoParams(max_divergence=0.01), 1.58, -1.0, 1.58 * LOG(0.79), 1.58),
    ("dppo_kl", DppoParams(max_divergence=0.01, max_divergence_high=9.0), 0.8, -1.0, 0.0, 0.0),
    ("dro", DroParams(beta=2.0), 1.5, 1.0, -LOG(0.75) + LOG(1.5) ** 2, -1 + 2 * LOG(1.5)),
    ("sapo", SapoParams(), 1.0, 1.0, -2.0, -1.0),
    ("sapo", SapoParams(), 1.0, -1.0, 2 / 1.05, 1.0),
    (
        "sapo",
        SapoParams(tau_positive=2.0),
        1.5,
        1.0,
        -2 / (1 + math.exp(-1)),
        -6 * math.exp(-1) / (1 + math.exp(-1)) ** 2,
    ),
    # The bounds of gspo are the paper's, below and above.
    ("gspo", GspoParams(), 1.1, 1.0, -1.0004, 0.0),
    ("gspo", GspoParams(), 0.9, -1.0, 0.9997, 0.0),
    ("gspo", GspoParams(sequence_eps_clip_high=0.2), 1.1, 1.0, -1.1, -1.1),
    ("gspo", GspoParams(sequence_eps_clip_high=0.2), 1.5, 1.0, -1.2, 0.0),
    ("gspo", GspoParams(sequence_eps_clip_high=0.6), 1.5, 1.0, -1.5, -1.5),
    ("gspo", GspoParams(sequence_eps_clip=0.2), 0.5, -1.0, 0.8, 0.0),
    # The bounds of gmpo are those of the log-ratio.
    ("gmpo", GmpoParams(log_ratio_clip=0.4), 1.45, 1.0, -1.45, -1.45),
    ("gmpo", GmpoParams(log_ratio_clip=0.4), 1.6, 1.0, -math.exp(0.4), 0.0),
    ("gmpo", GmpoParams(log_ratio_clip=0.1, log_ratio_clip_high=0.4), 1.6, 1.0, -math.exp(0.4), 0.0),
    ("gmpo", GmpoParams(log_ratio_clip=0.4), 1.6, -1.0, 1.6, 1.6),
    ("gmpo", GmpoParams(log_ratio_clip=0.4), 0.6, -1.0, math.exp(-0.4), 0.0),
    # A single token has no covariance.
    ("kl_cov", KlCovParams(kl_cov_ratio=1.0), 1.5, 1.0, -1.5, -1.5),
    ("clip_cov", ClipCovParams(clip_cov_ratio=1.0), 1.5, 1.0, -1.2, 0.0),
]


def test_one_token_by_hand() -> None:
    for name, params, ratio, advantage, loss, slope in CASES:
        assert one_token(name, ratio, advantage, params) == pytest.approx((loss, slope), abs=1e-12)


def test_dppo_measures_from_the_known_sampling_policy() -> None:
    columns = tokens(3)
    for name in ("dppo_tv", "dppo_kl"):
        moved = columns | {"old_logprobs": columns["logprobs"] - 5, "sampling_logprobs": columns["old_logprobs"]}
        found = LOSSES[name](LossInput(**moved), OPTIONS[name])
        assert torch.equal(found, LOSSES[name](LossInput(**columns), OPTIONS[name]))


@pytest.mark.parametrize("name", ["dppo_tv", "dppo_kl"])
def test_dppo_corrects_for_the_policy_that_sampled(name: str) -> None:
    """Rollout correction is rejected with this loss, because with this ratio twice the slope would be 0.2718."""
    logprobs = torch.tensor([-1.0], requires_grad=True)
    sampling, advantages = torch.tensor([-1.5]), torch.tensor([-0.1])
    inputs = LossInput(
        logprobs=logprobs,
        old_logprobs=logprobs.detach(),
        sampling_logprobs=sampling,
        advantages=advantages,
        row_ids=torch.tensor([0]),
    )
    (slope,) = torch.autograd.grad(LOSSES[name](inputs, DppoParams()).sum(), logprobs)
    assert slope.item() == pytest.approx(0.1 * math.exp(0.5))


@pytest.mark.parametrize("name", ["vespo", "topr", "ipo", "reinforce_kl"])
def test_old_tokens_are_measured_from_the_sampler(name: str) -> None:
    columns = tokens(3)
    moved = columns | {"old_logprobs": columns["logprobs"] - 5, "sampling_logprobs": columns["old_logprobs"]}
    assert torch.equal(
        LOSSES[name](LossInput(**moved), OPTIONS[name]), LOSSES[name](LossInput(**columns), OPTIONS[name])
    )


def test_topr_of_tokens_uses_each_ratio() -> None:
    columns = tokens(4)
    ratio = (columns["logprobs"] - columns["old_logprobs"]).exp()
    weight = torch.where(columns["advantages"] > 0, 1.0, ratio.clamp(max=1))
    found = LOSSES["topr"](LossInput(**columns), ToprParams(level="token"))
    torch.testing.assert_close(found, -weight * columns["advantages"] * columns["logprobs"])


def test_dppo_kl_is_exact_for_nearly_certain_tokens() -> None:
    """In float32, where 1 - p would be 0: the divergence is 0.0120, not infinite and not that of 1 - p = 1e-8."""
    for bound, kept in ((0.0119, False), (0.0121, True)):
        inputs = LossInput(
            logprobs=torch.tensor([-2e-8]),
            old_logprobs=torch.tensor([-1.2e-3]),
            advantages=torch.tensor([1.0]),
            row_ids=torch.tensor([0]),
        )
        loss = LOSSES["dppo_kl"](inputs, DppoParams(max_divergence=bound))
        assert (loss != 0).item() == kept
