"""The contract of policy losses. Like the losses of the core it is written in torch, and imported only where one is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor

from rllm_core.contracts.loss import LossInput, LossPlugin, PolicyLoss
from rllm_core.errors import RllmError, did_you_mean
from rllm_core.updates.losses import check_token_losses
from rllm_plugin_kit.plugin import PluginContract

COLUMNS = frozenset(field.name for field in fields(LossInput)) - {"row_ids", "seed"}
SEEDS = range(3)
STEP = 1e-6
"""Step size of the finite differences, in float64."""


class LossContract(PluginContract[LossPlugin[Any]]):
    """Contract of every policy loss. The tests fill the columns in the plugin's `needs` with plausible numbers."""

    kind = "loss"
    gradient: ClassVar[Literal["exact", "surrogate"]] = "exact"
    """Set `surrogate` for a loss that detaches a factor, so that its gradient is not the derivative of its value."""

    def test_declared_needs_exist(self) -> None:
        for need in sorted(self.plugin.needs - COLUMNS):
            raise self.failure(
                f"needs {need!r}, which is not a column for losses",
                f"{did_you_mean(need, COLUMNS)} Needs are columns of rllm_core.contracts.loss.LossInput.",
            )

    def test_it_returns_one_finite_loss_per_token(self, params: Any) -> None:
        for seed in SEEDS:
            self._losses(params, self._rows(seed), "some rows")
            self._losses(params, self._rows(seed, count=1), "one row")

    def test_no_tokens_give_no_losses(self, params: Any) -> None:
        self._losses(params, self._rows(0).at(torch.zeros(0, dtype=torch.int64)), "no token at all")

    def test_optional_columns_may_be_absent(self, params: Any) -> None:
        if "sampling_logprobs" in self.plugin.needs:
            pytest.skip("it needs sampling_logprobs")
        self._losses(params, replace(self._rows(0), sampling_logprobs=None), "rows without sampling_logprobs")

    def test_missing_sampler_log_probs_work(self, params: Any) -> None:
        if "sampling_logprobs" in self.plugin.needs:
            pytest.skip("it needs sampling_logprobs")
        rows = self._rows(0)
        assert rows.sampling_logprobs is not None
        unknown = rows.sampling_logprobs.masked_fill(rows.row_ids == rows.row_ids[0], torch.nan)
        self._losses(params, replace(rows, sampling_logprobs=unknown), "a row whose sampling_logprobs are NaN")

    def test_gradient_reaches_log_probs_and_is_finite(self, params: Any) -> None:
        for seed in SEEDS:
            gradient = self._gradient(params, self._rows(seed), "some rows")
            if not gradient.any():
                raise self.failure(
                    "has a gradient of 0 for every log-prob, so nothing would be learnt",
                    "Compute it from inputs.logprobs, and detach factors of the loss only, never all of it.",
                )

    def test_gradient_matches_the_numeric_slope(self, params: Any) -> None:
        inputs = _in_float64(self._rows(1))
        weights = torch.rand(len(inputs.logprobs), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        gradient = self._gradient(params, inputs, "rows in float64", weights)
        for token in range(len(weights)):
            there, back = (
                (self._losses(params, moved, "rows in float64") * weights).sum().item()
                for moved in _move_logprob(inputs, token)
            )
            slope = (there - back) / (2 * STEP)
            if abs(slope - float(gradient[token])) <= 1e-4 * max(1.0, abs(slope)):
                continue
            if self.gradient == "surrogate":
                return
            raise self.failure(
                f"has the gradient {float(gradient[token]):.6g} where its value has the slope {slope:.6g}",
                "Look for a detach() or a no_grad() too many. Where one is meant, as in CISPO, set "
                "`gradient = 'surrogate'` in the test.",
            )
        if self.gradient == "surrogate":
            raise self.failure(
                "has the gradient of its value everywhere, but its test has `gradient = 'surrogate'`",
                "Remove `gradient = 'surrogate'` from the test.",
            )

    def test_micro_batches_do_not_change_losses(self, params: Any) -> None:
        """Whole rows, in any order and in any company, have the losses and gradients they have together."""
        for seed in SEEDS:
            inputs = self._rows(seed)
            losses, gradient = self._losses(params, inputs, "some rows"), self._gradient(params, inputs, "some rows")
            order = torch.randperm(len(_row_ids(inputs)), generator=torch.Generator().manual_seed(seed))
            for rows in (*torch.split(order, 2), *torch.split(order, 1)):
                places = torch.cat([torch.nonzero(inputs.row_ids == _row_ids(inputs)[row])[:, 0] for row in rows])
                part = inputs.at(places)
                self._check_same(losses[places], self._losses(params, part, "a micro-batch"), "losses")
                self._check_same(gradient[places], self._gradient(params, part, "a micro-batch"), "gradients")

    def test_clipped_tokens_do_not_depend_on_micro_batches(self, params: Any) -> None:
        if self.plugin.load_clipped is None:
            pytest.skip("it does not report clipped tokens")
        function = self.plugin.load_clipped()
        for inputs in map(self._rows, SEEDS):
            together = function(inputs, params)
            if together.dtype != torch.bool or together.shape != inputs.logprobs.shape:
                raise self.failure(
                    f"returns clipped tokens as {together.dtype} of shape {tuple(together.shape)}",
                    "Let `load_clipped` return a function that gives one bool per token.",
                )
            for row in _row_ids(inputs):
                places = inputs.row_ids == row
                if not torch.equal(together[places], function(inputs.at(places), params)):
                    raise self.failure(
                        "reports different clipped tokens of a row when other rows are in the same call",
                        "Judge a row's tokens by their own row, as the loss does.",
                    )

    def test_extreme_ratios_stay_finite(self, params: Any) -> None:
        for log_ratio in (1000.0, -1000.0):
            for advantage in (2.0, -2.0, 0.0):
                inputs = self._rows(0)
                for where in (torch.ones_like(inputs.row_ids), torch.arange(len(inputs.row_ids)) % 3 == 0):
                    far = torch.where(where.bool(), inputs.old_logprobs + log_ratio, inputs.logprobs)
                    extreme = replace(inputs, logprobs=far, advantages=torch.full_like(inputs.advantages, advantage))
                    case = f"log-ratios of {log_ratio:g} and advantages of {advantage:g}"
                    self._gradient(params, extreme, case)

    def test_it_does_not_change_its_inputs(self, params: Any) -> None:
        inputs = self._rows(0)
        before = {name: column.clone() for name, column in _columns(inputs)}
        self._losses(params, inputs, "some rows")
        for name, column in _columns(inputs):
            if not torch.equal(column, before[name]):
                raise self.failure(
                    f"changes its inputs: `{name}` differs after the call",
                    "Use no in-place operation (such as add_ or clamp_) on what it is given.",
                )

    def test_same_inputs_and_seed_give_same_losses(self, params: Any) -> None:
        """The loss does not depend on the global random state and does not change it."""
        inputs = self._rows(0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            state = torch.get_rng_state()
            first = self._losses(params, inputs, "some rows")
            untouched = torch.equal(state, torch.get_rng_state())
            torch.manual_seed(2)
            again = self._losses(params, inputs, "some rows")
        if not untouched or not torch.equal(first, again):
            raise self.failure(
                "draws from the global random state, so the same update gives different losses",
                "Draw from a torch.Generator seeded by rllm_core.seeding.derive_seed(inputs.seed, 'name', row_id).",
            )

    def _rows(self, seed: int, count: int = 6) -> LossInput:
        """Rows of one to eight tokens, as after a first optimizer step: ratios near 1, some of them clipped."""
        generator = torch.Generator().manual_seed(seed)

        def noise(scale: float) -> Tensor:
            return scale * torch.randn(int(lengths.sum()), generator=generator)

        lengths = torch.randint(1, 9, (count,), generator=generator)
        ids = torch.randperm(3 * count, generator=generator)[:count]
        old = -4 * torch.rand(int(lengths.sum()), generator=generator) - 0.1
        return LossInput(
            logprobs=(old + noise(0.3)).clamp(max=-0.01),
            old_logprobs=old,
            sampling_logprobs=(old + noise(0.01)).clamp(max=-0.01),
            ref_logprobs=(old + noise(0.5)).clamp(max=-0.01) if "ref_logprobs" in self.plugin.needs else None,
            advantages=torch.repeat_interleave(torch.randn(count, generator=generator), lengths),
            row_ids=torch.repeat_interleave(ids, lengths),
            seed=seed,
        )

    def _losses(self, params: Any, inputs: LossInput, case: str) -> Tensor:
        try:
            losses = self.load_plugin()(inputs, params)
        except Exception as error:
            in_place = "in-place" in str(error)
            raise self.failure(
                f"failed on {case}: {type(error).__name__}: {' '.join(str(error).split())}",
                "It writes into its inputs: use no in-place operation on them."
                if in_place
                else "Such batches occur in training; give a loss for each of their tokens.",
            ) from error
        try:
            tensor = check_token_losses(losses, inputs, f"{self.display_name}, given {case},")
        except RllmError as error:
            raise AssertionError(str(error)) from error
        if tensor.dtype != inputs.logprobs.dtype:
            raise self.failure(
                f"returns {tensor.dtype} for log-probs of {inputs.logprobs.dtype}",
                "Make new tensors like the given ones (torch.zeros_like) instead of naming a dtype.",
            )
        return tensor

    def _gradient(self, params: Any, inputs: LossInput, case: str, weights: Tensor | float = 1.0) -> Tensor:
        logprobs = inputs.logprobs.clone().requires_grad_()
        losses = self._losses(params, replace(inputs, logprobs=logprobs), case)
        (losses * weights).sum().backward()  # type: ignore[no-untyped-call]
        gradient = logprobs.grad
        if gradient is None or not gradient.isfinite().all():
            raise self.failure(
                f"has a gradient that is NaN or infinite, given {case}",
                "Bound log-ratios before they are exponentiated (rllm_core.updates.losses.importance_ratio does), "
                "and guard divisions: torch.where lets the NaN of the branch not taken through.",
            )
        return gradient

    def _check_same(self, together: Tensor, apart: Tensor, what: str) -> None:
        if not torch.allclose(together, apart, rtol=1e-5, atol=1e-6):
            raise self.failure(
                f"gives a row other {what} when other rows are in the same call",
                "Let a row's tokens see nothing but their own row: which other rows are there is chance "
                "(micro-batches, ranks). Derive randomness from inputs.seed and the row's id, not its position.",
            )


def has_ratio(loss: PolicyLoss, params: Any) -> bool:
    """Return True if the old log-probs change a loss."""
    old = -torch.arange(1.0, 4.0)
    inputs = LossInput(
        logprobs=old - 0.1, old_logprobs=old, advantages=torch.ones(3), row_ids=torch.zeros(3, dtype=torch.int64)
    )
    other = replace(inputs, old_logprobs=old - 0.05)
    return not torch.equal(loss(inputs, params), loss(other, params))


def _columns(inputs: LossInput) -> list[tuple[str, Tensor]]:
    return [(name, column) for name, column in vars(inputs).items() if isinstance(column, Tensor)]


def _row_ids(inputs: LossInput) -> list[int]:
    ids: list[int] = torch.unique_consecutive(inputs.row_ids).tolist()
    return ids


def _in_float64(inputs: LossInput) -> LossInput:
    wide = {name: column.double() for name, column in _columns(inputs) if column.is_floating_point()}
    return replace(inputs, **wide)  # type: ignore[arg-type]


def _move_logprob(inputs: LossInput, token: int) -> Iterator[LossInput]:
    """With one log-prob a little higher, and a little lower."""
    for step in (STEP, -STEP):
        logprobs = inputs.logprobs.clone()
        logprobs[token] += step
        yield replace(inputs, logprobs=logprobs)
