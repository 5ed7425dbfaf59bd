"""Drawing tokens: the right distribution, a function of only the seed and the position, exact truncation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, strategies as st
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from rllm_core.contracts.engine import SamplingParams
from rllm_local.sampling import draw, truncate, uniforms


def _params(**changes: float) -> SamplingParams:
    return SamplingParams(max_tokens=1, **changes)  # type: ignore[arg-type]


def _chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """Standardized: about normal with mean 0 and deviation 1 when the counts come from what is expected."""
    freedom = counts.size - 1
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float((statistic - freedom) / math.sqrt(2 * freedom))


SMALL_SEEDS = list(range(2000))
DERIVED_SEEDS = [int(seed) for seed in np.random.default_rng(0).integers(0, 1 << 63, 2000)]


@pytest.mark.parametrize("seeds", [SMALL_SEEDS, DERIVED_SEEDS], ids=["small", "derived"])
def test_uniforms_are_uniform_over_seeds_and_over_positions(seeds: list[int]) -> None:
    positions = 200
    grid = np.stack([uniforms(seeds, [position] * len(seeds)) for position in range(positions)])
    assert (grid >= 0).all()
    assert (grid < 1).all()
    bins = np.floor(grid * 20).astype(int)
    everything = np.bincount(bins.ravel(), minlength=20)
    assert abs(_chi_square(everything, np.full(20, bins.size / 20))) < 4
    by_position = [_chi_square(np.bincount(row, minlength=20), np.full(20, row.size / 20)) for row in bins]
    by_seed = [_chi_square(np.bincount(row, minlength=20), np.full(20, row.size / 20)) for row in bins.T]
    for scores in (by_position, by_seed):
        assert max(scores) < 6
        assert abs(np.mean(scores)) < 0.35


@pytest.mark.parametrize("seeds", [SMALL_SEEDS, DERIVED_SEEDS], ids=["small", "derived"])
@pytest.mark.parametrize("lag", [1, 2, 17])
def test_uniforms_of_neighboring_positions_and_seeds_are_independent(seeds: list[int], lag: int) -> None:
    grid = np.stack([uniforms(seeds, [position] * len(seeds)) for position in range(100)])
    for first, second in (
        (grid[:-lag], grid[lag:]),
        (grid[:, :-lag], grid[:, lag:]),
        (grid[lag:, :-lag], grid[:-lag, lag:]),
    ):
        pairs = np.floor(first * 10).astype(int) * 10 + np.floor(second * 10).astype(int)
        counts = np.bincount(pairs.ravel(), minlength=100)
        assert abs(_chi_square(counts, np.full(100, pairs.size / 100))) < 5


def test_positions_of_small_seeds_share_no_draw() -> None:
    seeds, positions = np.meshgrid(np.arange(200), np.arange(200))
    drawn = uniforms(seeds.ravel().tolist(), positions.ravel().tolist())
    assert len(np.unique(drawn)) == drawn.size


def test_seeds_of_any_size_are_taken() -> None:
    drawn = uniforms([0, -1, 1 << 63, (1 << 64) - 1, 1 << 70], [0, 1, 2, 3, 1 << 40])
    assert ((drawn >= 0) & (drawn < 1)).all()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_tokens_are_drawn_with_probabilities_at_the_temperature(temperature: float) -> None:
    logits = torch.tensor([1.2, -0.3, 0.0, 2.0, -1.0, 0.4])
    draws = 40_000
    tokens = draw(
        logits.expand(draws, -1), [_params(temperature=temperature, seed=seed) for seed in range(draws)], [3] * draws
    ).tokens
    expected = torch.softmax(logits.double() / temperature, dim=-1).numpy() * draws
    assert abs(_chi_square(np.bincount(tokens, minlength=6), expected)) < 4


@given(
    logits=st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=12),
    temperature=st.floats(0.05, 10),
    seed=st.integers(0, 2**63),
    position=st.integers(0, 1000),
)
def test_log_probs_are_those_of_the_tempered_softmax(
    logits: list[float], temperature: float, seed: int, position: int
) -> None:
    drawn = draw(torch.tensor([logits]), [_params(temperature=temperature, seed=seed)], [position])
    expected = torch.log_softmax(torch.tensor(logits).double() / np.float32(temperature).item(), dim=-1)
    assert drawn.logprobs[0] == pytest.approx(expected[int(drawn.tokens[0])].item(), abs=1e-4, rel=1e-6)


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=12), st.integers(0, 2**63))
def test_temperature_zero_is_argmax_with_plain_log_prob(logits: list[float], seed: int) -> None:
    row = torch.tensor([logits])
    drawn = draw(row, [_params(temperature=0.0, seed=seed)], [0])
    assert drawn.tokens[0] == int(row.argmax())
    expected = torch.log_softmax(row.double(), dim=-1).max().item()
    assert drawn.logprobs[0] == pytest.approx(expected, abs=1e-5)


def _by_transformers(logits: torch.Tensor, *, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """(n_vocabulary,) scores after the processors that `generate()` applies, -inf where a token is removed."""
    processors = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k > 0:
        processors.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        processors.append(TopPLogitsWarper(top_p))
    return processors(torch.zeros(1, 1, dtype=torch.int64), logits[None])[0]


@given(
    logits=st.lists(
        st.one_of(
            st.floats(-30, 30, width=32),
            st.sampled_from([-math.inf, -1e30, -1e4, -1.0, 0.0, 0.5, 1.0, 1.0 + 2.0**-20, 1e4]),
        ),
        min_size=1,
        max_size=12,
    ),
    temperature=st.sampled_from([0.25, 1.0, 2.5]),
    top_k=st.sampled_from([-1, 0, 1, 2, 3, 5, 50]),
    top_p=st.sampled_from([0.0, 1e-12, 0.01, 0.25, 0.3, 0.5, 0.77, 0.8, 0.9, 0.999, 1.0]),
)
def test_top_k_and_top_p_match_transformers(logits: list[float], temperature: float, top_k: int, top_p: float) -> None:
    assume(max(logits) > -math.inf)
    row = torch.tensor(logits)
    theirs = _by_transformers(row, temperature=temperature, top_k=top_k, top_p=top_p)
    if top_p < 1:
        # Where a sum of probabilities is as large as what top-p removes, rounding decides, and both answers are right.
        before = _by_transformers(row, temperature=temperature, top_k=top_k, top_p=1.0)
        sums = before.double().softmax(-1).sort()[0].cumsum(-1)[:-1]
        assume(not ((sums - (1 - top_p)).abs() < 1e-5).any())
    scores = row[None] / temperature
    probabilities = scores.log_softmax(-1).exp().double()
    ours = truncate(probabilities, scores, [_params(temperature=temperature, top_k=top_k, top_p=top_p)])[0]
    assert torch.equal(ours[ours > 0], probabilities[0][ours > 0])
    # Which of equal tokens a cut keeps is arbitrary, so scores are compared. Tokens too rare to be drawn do not count.
    can_be_drawn = (theirs > -math.inf) & (probabilities[0] > 1e-30)
    assert torch.equal(scores[0][ours > 1e-30].sort()[0], theirs[can_be_drawn].sort()[0])


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ({"top_k": 3, "top_p": 0.8}, 2),
        ({"top_k": 3, "top_p": 0.9}, 3),
        ({"top_k": 3}, 3),
        ({"top_p": 0.55}, 3),
        ({"top_k": 4}, 40),
        ({"top_k": 50, "top_p": 0.29}, 1),
    ],
)
def test_truncated_tokens_are_drawn_in_proportion(sampling: dict[str, float], kept: int) -> None:
    """top_k=4 keeps all tokens, for 37 of them tie with the fourth."""
    probabilities = torch.tensor([0.3, 0.2, 0.1, *[0.4 / 37] * 37], dtype=torch.float64)
    draws = 20_000
    params = [_params(seed=seed, **sampling) for seed in range(draws)]
    tokens = draw(probabilities.log().float().expand(draws, -1), params, [0] * draws).tokens
    assert set(tokens.tolist()) == set(range(kept))
    if kept > 1:
        share = probabilities[:kept] / probabilities[:kept].sum()
        assert abs(_chi_square(np.bincount(tokens, minlength=kept), share.numpy() * draws)) < 4


def test_an_untruncated_row_keeps_every_token() -> None:
    """A sum of rounded probabilities may exceed 1 before the last token is reached."""
    logits = torch.from_numpy(np.random.default_rng(3).normal(0, 3, 5000).astype(np.float32))
    free, cut = _params(seed=9), _params(seed=9, top_p=0.5, top_k=3)
    for seed in range(0, 4000, 100):
        single = draw(logits[None], [_params(seed=seed)], [0])
        batched = draw(torch.stack((logits, logits)), [_params(seed=seed), cut], [0, 0])
        assert single.tokens[0] == batched.tokens[0]
    probabilities = (torch.softmax(logits.float(), dim=-1) * (1 + 1e-6)).double()
    kept = truncate(torch.stack((probabilities, probabilities)), torch.stack((logits, logits)), [free, cut])
    assert torch.equal(kept[0], probabilities)
    assert int((kept[1] > 0).sum()) <= 3


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-53])
def test_token_with_probability_zero_is_never_drawn(monkeypatch: pytest.MonkeyPatch, uniform: float) -> None:
    monkeypatch.setattr("rllm_local.sampling.uniforms", lambda seeds, positions: np.full(len(seeds), uniform))
    generator = np.random.default_rng(0)
    logits = torch.from_numpy(generator.normal(0, 2, (2000, 9)).astype(np.float32))
    logits[:, [0, 4, 8]] = -math.inf
    tokens = draw(logits, [_params()] * 2000, [0] * 2000).tokens
    assert set(tokens.tolist()) == ({1} if uniform == 0 else {7})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_logits_affect_only_their_rows_log_prob(temperature: float) -> None:
    logits = torch.zeros(2, 5)
    logits[1, 3] = math.nan
    logprobs = draw(logits, [_params(temperature=temperature)] * 2, [0, 0]).logprobs
    assert np.isfinite(logprobs).tolist() == [True, False]


def test_draw_is_bit_equal_next_to_constrained_row() -> None:
    logits = torch.randn(64, 50, generator=torch.Generator().manual_seed(0))
    sampling = [SamplingParams(max_tokens=1, seed=seed, temperature=0.7) for seed in range(64)]
    only = np.zeros(50, np.bool_)
    only[7] = True
    single, together = draw(logits, sampling, [0] * 64), draw(logits, sampling, [0] * 64, [only, *[None] * 63])
    assert together.tokens[0] == 7
    assert np.array_equal(together.tokens[1:], single.tokens[1:])
    assert np.array_equal(together.logprobs, torch.log_softmax(logits / 0.7, -1)[range(64), together.tokens].numpy())


def test_draw_does_not_depend_on_other_rows() -> None:
    logits = torch.from_numpy(np.random.default_rng(1).normal(0, 1, (50, 30)).astype(np.float32))
    params = [_params(seed=row, temperature=[0.0, 0.7, 1.0][row % 3], top_k=[-1, 5][row % 2]) for row in range(50)]
    together = draw(logits, params, list(range(50)))
    for row in range(50):
        single = draw(logits[row : row + 1], [params[row]], [row])
        assert single.tokens[0] == together.tokens[row]
        assert single.logprobs[0] == together.logprobs[row]


def test_greedy_compares_logits_instead_of_rounded_log_probs() -> None:
    logits = torch.tensor([[0.0, 1e-10, -3.0]])
    assert draw(logits, [_params(temperature=0.0)], [0]).tokens[0] == 1
