"""Rollouts of the validation tasks, and validation on preferences."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from letters import Letters

from rllm.builtin.preferences.comparison import PreferParams
from rllm.builtin.preferences.stages import validate_preferences
from rllm.builtin.supervised.turns import ExamplesParams
from rllm.training.validation import validate
from rllm_core.contracts.stage import RolloutRequest
from rllm_core.data.batch import TokenBatch
from rllm_core.data.types import Episode, Task, Trajectory
from rllm_core.schema.run_config import RunConfig


class SolvesEveryOther:
    """In place of a runner: even rollouts are correct."""

    def __init__(self) -> None:
        self.orders: list[RolloutRequest] = []

    async def run(self, order: RolloutRequest) -> list[Episode]:
        self.orders.append(order)
        return [
            Episode(
                id=f"{task.id}:{index}",
                trajectories=[Trajectory("agent", reward=float(index % 2 == 0))],
                is_correct=index % 2 == 0,
                data_source=task.data_source,
            )
            for task in order.tasks
            for index in range(order.rollouts)
        ]


def _config(seed: int = 0) -> RunConfig:
    return RunConfig.model_validate(
        {
            "rllm": {"rollout": {"n_val": 2, "n": 9}, "trainer": {"seed": seed}},
            "data": {"val_batch_size": 3, "max_response_length": 12},
            "sampling": {"val": {"temperature": 0.25}, "train": {"temperature": 0.75}},
        }
    )


TASKS = [Task(id=str(index), data_source="even" if index % 2 == 0 else "odd") for index in range(7)]


def _validate(runner: Any, config: RunConfig) -> dict[str, float]:
    return asyncio.run(validate(runner, TASKS, config))


def test_tasks_run_in_batches_with_validation_sampling() -> None:
    runner = SolvesEveryOther()
    metrics = _validate(runner, _config())
    assert [[task.id for task in order.tasks] for order in runner.orders] == [["0", "1", "2"], ["3", "4", "5"], ["6"]]
    assert {(order.rollouts, order.label) for order in runner.orders} == {(2, "val")}
    assert {(order.sampling.temperature, order.sampling.max_tokens) for order in runner.orders} == {(0.25, 12)}
    assert metrics == {
        f"val/{source}/{metric}": value
        for source in ("even", "odd")
        for metric, value in (("pass@1", 0.5), ("pass@2", 1.0), ("reward", 0.5))
    }


def test_validations_of_a_run_share_their_seed() -> None:
    runner = SolvesEveryOther()
    for seed in (0, 0, 1):
        _validate(runner, _config(seed))
    seeds = [order.sampling.seed for order in runner.orders]
    assert len(set(seeds[:6])) == 1
    assert seeds[6] != seeds[0]
    assert asyncio.run(validate(runner, [], _config())) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize("batch_size", [1, 2, 7, 100])
def test_batch_size_does_not_change_the_metrics(batch_size: int) -> None:
    config = RunConfig.model_validate({"rllm": {"rollout": {"n_val": 2}}, "data": {"val_batch_size": batch_size}})
    assert _validate(SolvesEveryOther(), config) == _validate(SolvesEveryOther(), _config())


ENGINE: Any = SimpleNamespace(renderer=Letters(stop="\0"), max_context=100)


class Bytes:
    """A backend whose log p - log p(reference) of a token is its byte divided by 100."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    async def process(self, batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        self.rows.append(batch.n_rows)
        ratios = np.where(batch.loss_mask, batch.tokens / 100, 0).astype(np.float32)
        return batch.with_columns(old_logprobs=ratios - 1, ref_logprobs=np.full_like(ratios, -1))


def chat(prompt: str, completion: str) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": prompt}],
        "completion": [{"role": "assistant", "content": completion}],
    }


def validate_rows(backend: Any, labels: str, size: int) -> dict[str, float]:
    """Validate on rows whose completions are digits. Labels are + or -."""
    tasks = [
        Task(id=str(at), data={**chat(f"{at}?", str(at)), "label": label == "+"}, data_source="val")
        for at, label in enumerate(labels)
    ]
    params = PreferParams(loss="kto", beta=1)
    return asyncio.run(validate_preferences(backend, ENGINE, tasks, size, ExamplesParams(), params))


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_rewards_are_means_over_good_and_bad_rows(size: int) -> None:
    found = validate_rows(Bytes(), "+++-+-", size)
    good, bad = ([ord(digit) / 100 for digit in digits] for digits in ("0124", "35"))
    assert found["val/val/chosen_reward"] == pytest.approx(np.mean(good), abs=1e-6)
    assert found["val/val/rejected_reward"] == pytest.approx(np.mean(bad), abs=1e-6)


@pytest.mark.parametrize(
    ("rows", "size", "batches"), [(5, 4, [5]), (5, 2, [2, 3]), (6, 4, [4, 2]), (3, 1, [3]), (1, 4, []), (4, 4, [4])]
)
def test_no_batch_of_kto_has_one_row(rows: int, size: int, batches: list[int]) -> None:
    """Each batch is processed twice: with its completions, and with completions of other prompts."""
    backend = Bytes()
    found = validate_rows(backend, "+" * rows, size)
    assert backend.rows[::2] == backend.rows[1::2] == batches
    assert bool(found) == bool(batches)
