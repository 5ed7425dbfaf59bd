"""Teachers that are wrong in one way each, and the messages of the contract."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.teacher import TeacherPlugin, TeacherSetup
from rllm_core.data.batch import TokenBatch
from rllm_plugin_kit import TeacherContract


class ByToken:
    """Gives each token id its own log-prob."""

    def __init__(self, params: NoParams, setup: TeacherSetup) -> None:
        self.calls = 0

    async def logprobs(self, batch: TokenBatch) -> NDArray[np.float32]:
        self.calls += 1
        return -1 - batch.tokens.astype(np.float32)


class ScoresOnlySampled(ByToken):
    async def logprobs(self, batch: TokenBatch) -> NDArray[np.float32]:
        return (await super().logprobs(batch))[batch.loss_mask]


class ScoresWithNan(ByToken):
    async def logprobs(self, batch: TokenBatch) -> NDArray[np.float32]:
        return await super().logprobs(batch) + np.float32(np.nan)


class ReturnsProbabilities(ByToken):
    async def logprobs(self, batch: TokenBatch) -> NDArray[np.float32]:
        return np.full(len(batch.tokens), 0.5, np.float32)


class Counts(ByToken):
    async def logprobs(self, batch: TokenBatch) -> NDArray[np.float32]:
        return await super().logprobs(batch) - self.calls


class ReadsOtherRows(ByToken):
    async def logprobs(self, batch: TokenBatch) -> NDArray[np.float32]:
        return await super().logprobs(batch) - np.float32(batch.n_rows)


class ChangesTokens(ByToken):
    async def logprobs(self, batch: TokenBatch) -> NDArray[np.float32]:
        logprobs = await super().logprobs(batch)
        batch.tokens[:] = 0
        return logprobs


class UsesSharedNumbers(ByToken):
    async def logprobs(self, batch: TokenBatch) -> NDArray[np.float32]:
        random.random()
        return await super().logprobs(batch)


class Likely(ByToken):
    """Has ten tokens, and the distribution of `ByToken` at each position."""

    async def top_logprobs(self, batch: TokenBatch, k: int | None) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        ids = np.tile(np.arange(10, dtype=np.int32)[:k], (int(batch.loss_mask.sum()), 1))
        return ids, -1 - ids.astype(np.float32)


class LikelyAtAllTokens(Likely):
    async def top_logprobs(self, batch: TokenBatch, k: int | None) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        ids = np.tile(np.arange(10, dtype=np.int32)[:k], (len(batch.tokens), 1))
        return ids, -1 - ids.astype(np.float32)


class LikelyTwice(Likely):
    async def top_logprobs(self, batch: TokenBatch, k: int | None) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        ids, logprobs = await super().top_logprobs(batch, k)
        return ids // 2, logprobs


class LikelyOfTooMuch(Likely):
    async def top_logprobs(self, batch: TokenBatch, k: int | None) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        ids, logprobs = await super().top_logprobs(batch, k)
        return ids, np.zeros_like(logprobs)


class LikelyOfOthers(Likely):
    async def top_logprobs(self, batch: TokenBatch, k: int | None) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        ids, logprobs = await super().top_logprobs(batch, k)
        return ids + 40, logprobs


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


def test_hook_example_keeps_the_contract(complaints: Any, example: Any) -> None:
    assert complaints(TeacherContract, example("teacher")) == {}


LIKELIEST = "top_tokens_match_the_sampled_logprobs"
SCORES = "each_sampled_token_has_a_finite_logprob"


@pytest.mark.parametrize(
    ("made", "test", "value"),
    [
        (ScoresOnlySampled, SCORES, "shape"),
        (ScoresWithNan, SCORES, "nan"),
        (ReturnsProbabilities, SCORES, "0.5"),
        (Counts, "same_batch_has_same_logprobs", "same batch"),
        (ReadsOtherRows, "logprob_does_not_depend_on_other_rows", "row_offsets"),
        (ChangesTokens, "process_wide_state_is_unchanged", "tokens"),
        (LikelyAtAllTokens, LIKELIEST, "shape"),
        (LikelyTwice, LIKELIEST, "different tokens"),
        (LikelyOfTooMuch, LIKELIEST, "sum 5"),
        (LikelyOfOthers, LIKELIEST, "do not match"),
        (UsesSharedNumbers, "process_wide_state_is_unchanged", "random"),
    ],
)
def test_contract_reports_the_mistake(complaint: Any, made: Any, test: str, value: str) -> None:
    assert value in complaint(TeacherContract, record(made), test)
