"""Validation on preferences: means over all rows, in batches of any size."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rllm.preferences.options import PreferParams
from rllm.supervised.options import ExamplesParams
from rllm.training.validation import validate_preferences
from rllm_core.data.batch import TokenBatch
from rllm_core.data.types import Task
from rllm_core.schema.run_config import RunConfig

RENDERER: Any = SimpleNamespace(
    tokenizer=SimpleNamespace(encode=lambda text, add_special_tokens: [*text.encode()], eos_token_id=0)
)


class Bytes:
    """A backend whose log p - log p(reference) of a token is its byte divided by 100."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    async def process(self, batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        self.rows.append(batch.n_rows)
        ratios = np.where(batch.loss_mask, batch.tokens / 100, 0).astype(np.float32)
        return batch.with_columns(old_logprobs=ratios - 1, ref_logprobs=np.full_like(ratios, -1))


def validate(backend: Any, labels: str, size: int) -> dict[str, float]:
    """Validate on rows whose completions are digits. Labels are + or -."""
    tasks = [
        Task(id=str(at), data={"prompt": "?", "completion": str(at), "label": label == "+"}, data_source="val")
        for at, label in enumerate(labels)
    ]
    config = RunConfig.model_validate({"data": {"val_batch_size": size}})
    params = PreferParams(loss="kto", beta=1)
    return asyncio.run(validate_preferences(backend, RENDERER, tasks, config, ExamplesParams(), params))


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_rewards_are_means_over_good_and_bad_rows(size: int) -> None:
    found = validate(Bytes(), "+++-+-", size)
    good, bad = ([ord(digit) / 100 for digit in digits] for digits in ("0124", "35"))
    assert found["val/val/chosen_reward"] == pytest.approx(np.mean(good), abs=1e-6)
    assert found["val/val/rejected_reward"] == pytest.approx(np.mean(bad), abs=1e-6)


@pytest.mark.parametrize(
    ("rows", "size", "batches"), [(5, 4, [5]), (5, 2, [2, 3]), (6, 4, [4, 2]), (3, 1, [3]), (1, 4, []), (4, 4, [4])]
)
def test_no_batch_of_kto_has_one_row(rows: int, size: int, batches: list[int]) -> None:
    """Each batch is processed twice: with its completions, and with completions of other prompts."""
    backend = Bytes()
    found = validate(backend, "+" * rows, size)
    assert backend.rows[::2] == backend.rows[1::2] == batches
    assert bool(found) == bool(batches)
