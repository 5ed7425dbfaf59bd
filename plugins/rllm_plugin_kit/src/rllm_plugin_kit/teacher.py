"""The contract of teachers."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rllm_core.contracts.teacher import TeacherPlugin, TeacherSetup
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import TrajectoryGroup
from rllm_core.errors import ConfigError
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_plugin_kit.fake_rollouts import STOP_ID, CharacterTokenizer
from rllm_plugin_kit.fakes import FakeBackend
from rllm_plugin_kit.plugin import PluginContract
from rllm_plugin_kit.samples import fill, make_groups, random_members

K = 5
"""Number of likeliest tokens that the contract requests."""
CLOSE = 1e-4
"""Nats by which a log-prob may depend on the other rows of a batch, because sums have a different order."""


class TeacherContract(PluginContract[TeacherPlugin[Any]]):
    """Contract of every teacher."""

    kind = "teacher"

    def setup(self) -> TeacherSetup:
        """Return the run's parts. Override it if the teacher needs a backend with a model, or its own tokenizer."""
        renderer = TemplateRenderer(CharacterTokenizer(), {STOP_ID})
        return TeacherSetup(backend=FakeBackend(), renderer=renderer, temperature=1.0, seed=0)

    def groups(self) -> list[TrajectoryGroup]:
        """Return the rollouts to score. Override it if the teacher needs different tokens or messages."""
        return make_groups(random_members(0, (3, 4)))

    def test_each_sampled_token_has_a_finite_logprob(self, params: Any) -> None:
        batch = self._batch(self.groups())
        logprobs = self._score(self._teacher(params), batch)
        if logprobs.shape != batch.tokens.shape:
            raise self.failure(
                f"returned an array of shape {logprobs.shape} for {len(batch.tokens)} tokens",
                "Return one log-prob for each token of the batch.",
            )
        sampled = logprobs[batch.loss_mask]
        if not np.isfinite(sampled).all():
            raise self.failure(
                f"returned {sampled[~np.isfinite(sampled)][0]} for a sampled token",
                "Return finite log-probs for all tokens with `loss_mask`.",
            )
        if (sampled > CLOSE).any():
            raise self.failure(f"returned the log-prob {sampled.max():.4g}", "Return log-probs, which are at most 0.")

    def test_same_batch_has_same_logprobs(self, params: Any) -> None:
        teacher, batch = self._teacher(params), self._batch(self.groups())
        first, second = (self._score(teacher, batch)[batch.loss_mask] for _ in range(2))
        if not np.allclose(first, second, rtol=0, atol=CLOSE):
            raise self.failure(
                "returned different log-probs for the same batch", "Store nothing between calls, and sample nothing."
            )

    def test_logprob_does_not_depend_on_other_rows(self, params: Any) -> None:
        teacher, groups = self._teacher(params), self.groups()
        batch = self._batch(groups)
        together = self._score(teacher, batch)[batch.loss_mask]
        parts = [self._batch([group]) for group in groups]
        apart = np.concatenate([self._score(teacher, part)[part.loss_mask] for part in parts])
        if together.shape != apart.shape or not np.allclose(together, apart, rtol=0, atol=CLOSE):
            raise self.failure(
                "returned different log-probs for a row that is scored with other rows",
                "Score each token after only the earlier tokens of its row (`TokenBatch.row_offsets`).",
            )

    def test_top_tokens_match_the_sampled_logprobs(self, params: Any) -> None:
        if not self.plugin.distributions:
            pytest.skip("the spec has no `distributions`")
        teacher, batch = self._teacher(params), self._batch(self.groups())
        with self.explain_errors("failed to find likely tokens", "`top_logprobs` receives the same batches."):
            ids, logprobs = map(np.asarray, asyncio.run(teacher.top_logprobs(batch, K)))
        count = int(batch.loss_mask.sum())
        if not ids.shape == logprobs.shape == (count, K):
            raise self.failure(
                f"returned arrays of shapes {ids.shape} and {logprobs.shape} for {count} sampled tokens and k={K}",
                "Return ids and log-probs, each with a row for each sampled token and k columns.",
            )
        if any(len(set(row)) < K for row in ids.tolist()):
            raise self.failure("returned a token twice for one position", "Return k different tokens.")
        sums = np.exp(logprobs.astype(np.float64)).sum(axis=1)
        if not (np.isfinite(logprobs).all() and (sums <= 1 + CLOSE).all()):
            raise self.failure(
                f"returned probabilities with the sum {sums.max():.4g}",
                "Return log-probs over the whole vocabulary, which are finite.",
            )
        own = self._score(teacher, batch)[batch.loss_mask]
        places, columns = np.nonzero(ids == batch.tokens[batch.loss_mask][:, None])
        missing = np.setdiff1d(np.arange(count), places)
        if (
            not np.allclose(logprobs[places, columns], own[places], rtol=0, atol=CLOSE)
            or (own[missing] > logprobs[missing].min(axis=1) + CLOSE).any()
        ):
            raise self.failure(
                "returned likeliest tokens that do not match its log-probs of the sampled tokens",
                "Sort by probability, with the distribution before the sampled token.",
            )

    def test_process_wide_state_is_unchanged(self, params: Any) -> None:
        teacher, batch = self._teacher(params), self._batch(self.groups())
        before = batch.tokens.copy()
        self.check_process_state(lambda: self._score(teacher, batch), "Restore the values after scoring.")
        if (batch.tokens != before).any():
            raise self.failure("changed the tokens of the batch", "Copy an array before you change it.")

    def _batch(self, groups: list[TrajectoryGroup]) -> TokenBatch:
        return fill(build_batch(groups), ["old_logprobs"])

    def _teacher(self, params: Any) -> Any:
        try:
            return self.load_plugin()(params, self.setup())
        except ConfigError as error:
            raise self.failure(
                f"rejects the run of this test: {error.message}", "Override `setup` in your test class."
            ) from error

    def _score(self, teacher: Any, batch: TokenBatch) -> NDArray[np.float32]:
        with self.explain_errors("failed to score tokens", "`logprobs` receives any tokens of the trained model."):
            return np.asarray(asyncio.run(teacher.logprobs(batch)), np.float32)
