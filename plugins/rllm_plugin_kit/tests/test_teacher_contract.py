"""Teachers that are wrong in one way each, and the messages of the contract."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rllm_core.contracts import NoParams, TeacherPlugin, TeacherSetup
from rllm_core.data.batch import TokenBatch
from rllm_plugin_kit import TeacherContract

from .conftest import vary


class ByToken:
    """Gives each token id its own log-prob."""

    def __init__(self, params: NoParams, setup: TeacherSetup) -> None:
        self.calls = 0

    async def logprobs(self, batch: TokenBatch) -> NDArray[np.float32]:
        self.calls += 1
        return self.change(batch, -1 - batch.tokens.astype(np.float32))

    def change(self, batch: TokenBatch, logprobs: Any) -> Any:
        return logprobs


def scoring(change: Callable[[ByToken, TokenBatch, Any], Any]) -> type[ByToken]:
    """Return a teacher that changes its log-probs."""
    return vary(ByToken, change=change)


class ChangesTokens(ByToken):
    def change(self, batch: TokenBatch, logprobs: Any) -> Any:
        batch.tokens[:] = 0
        return logprobs


class Likely(ByToken):
    """Has ten tokens, and the distribution of `ByToken` at each position."""

    async def top_logprobs(self, batch: TokenBatch, k: int | None) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        ids = np.tile(np.arange(10, dtype=np.int32)[:k], (self.count(batch), 1))
        return self.change_top(ids, -1 - ids.astype(np.float32))

    def count(self, batch: TokenBatch) -> int:
        return int(batch.loss_mask.sum())

    def change_top(self, ids: Any, logprobs: Any) -> Any:
        return ids, logprobs


def of_top(change: Callable[[Any, Any], Any]) -> type[Likely]:
    """Return a teacher that changes its likeliest tokens and their log-probs."""
    return vary(Likely, change_top=lambda self, ids, logprobs: change(ids, logprobs))


def record(made: Any) -> TeacherPlugin[NoParams]:
    return TeacherPlugin(
        name="mine",
        summary="Mine.",
        params=NoParams,
        load=lambda: made,
        distributions=issubclass(made, Likely),
    )


def test_a_good_teacher_has_no_complaints(complaints: Any) -> None:
    assert complaints(TeacherContract, record(ByToken)) == {}
    assert complaints(TeacherContract, record(Likely)) == {}


LIKELIEST = "top_tokens_match_the_sampled_logprobs"
SCORES = "each_sampled_token_has_a_finite_logprob"


@pytest.mark.parametrize(
    ("made", "test", "value"),
    [
        (scoring(lambda self, batch, logprobs: logprobs[batch.loss_mask]), SCORES, "shape"),
        (scoring(lambda self, batch, logprobs: logprobs + np.float32(np.nan)), SCORES, "nan"),
        (scoring(lambda self, batch, logprobs: np.full_like(logprobs, 0.5)), SCORES, "0.5"),
        (scoring(lambda self, batch, logprobs: logprobs - self.calls), "same_batch_has_same_logprobs", "same batch"),
        (
            scoring(lambda self, batch, logprobs: logprobs - np.float32(batch.n_rows)),
            "logprob_does_not_depend_on_other_rows",
            "row_offsets",
        ),
        (ChangesTokens, "process_wide_state_is_unchanged", "tokens"),
        (vary(Likely, count=lambda self, batch: len(batch.tokens)), LIKELIEST, "shape"),
        (of_top(lambda ids, logprobs: (ids // 2, logprobs)), LIKELIEST, "different tokens"),
        (of_top(lambda ids, logprobs: (ids, np.zeros_like(logprobs))), LIKELIEST, "sum 5"),
        (of_top(lambda ids, logprobs: (ids + 40, logprobs)), LIKELIEST, "do not match"),
        (
            scoring(lambda self, batch, logprobs: logprobs + 0 * np.float32(random.random())),
            "process_wide_state_is_unchanged",
            "random",
        ),
    ],
)
def test_contract_reports_the_mistake(complaint: Any, made: Any, test: str, value: str) -> None:
    assert value in complaint(TeacherContract, record(made), test)
