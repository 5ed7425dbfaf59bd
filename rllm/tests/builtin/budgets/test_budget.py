"""Budgets of a run: what is counted, when the run stops, and how it continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rllm.builtin.budgets.observer import Budget, BudgetParams, Spent
from rllm.config.compose import compose
from rllm.config.layers import layers_from_overrides
from rllm.planning.planner import make_plan
from rllm.runs.run_directory import RunDirectory
from rllm.training.loop import TrainingLoop
from rllm.training.setup import load_tasks
from rllm_core.plugins.registry import Registry

SETTINGS = (
    "rllm.env.name=sum",
    "rllm.rollout.n=4",
    "rllm.rollout.n_val=1",
    "data.train_batch_size=4",
    "data.max_response_length=2",
    "rllm.trainer.val_before_train=false",
    "rllm.trainer.test_freq=2",
    "rllm.trainer.total_batches=5",
    "rllm.trainer.logger=[]",
    "local.training_process=false",
    "training.learning_rate=0.01",
)


class Training:
    """One start of a small run in a directory."""

    def __init__(self, directory: Path, *options: str, resume: bool = False) -> None:
        registry = Registry.load()
        keys = [*SETTINGS, f"rllm.trainer.output_dir={directory}", *options]
        plan = make_plan(compose(registry, layers_from_overrides(keys)), registry)
        run = RunDirectory.open(plan.config.rllm.trainer, resume=resume, overwrite=not resume)
        self.warnings: list[str] = []
        tasks = load_tasks(plan, "train"), load_tasks(plan, "val")
        loop = TrainingLoop(
            plan, run, train_tasks=tasks[0], val_tasks=tasks[1], resume=resume, warn=self.warnings.append
        )
        try:
            loop.fit()
        finally:
            run.close()
        self.steps, self.path = loop.finished_steps, run.path

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics without times."""
        lines = [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]
        return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]

    @property
    def tokens(self) -> list[int]:
        """Sampled and trained tokens after each step."""
        return [
            int(line["budget/sampled_tokens"] + line["budget/trained_tokens"])
            for line in self.metrics
            if "budget/sampled_tokens" in line
        ]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return Training(tmp_path_factory.mktemp("whole"), "rllm.trainer.max_tokens=1000000000")


@pytest.mark.long
def test_run_stops_within_one_batch_and_resumes_exactly(whole_run: Training, tmp_path: Path) -> None:
    # Spent in the second step, whose validation is due.
    budget = whole_run.tokens[0] + 1
    stopped = Training(tmp_path, f"rllm.trainer.max_tokens={budget}")
    assert stopped.steps == 2
    assert stopped.tokens == whole_run.tokens[:2]
    assert any(f"after 2 of 5 steps: its budget rllm.trainer.max_tokens={budget}" in line for line in stopped.warnings)
    assert Training(tmp_path, f"rllm.trainer.max_tokens={budget}", resume=True).steps == 2
    resumed = Training(tmp_path, "rllm.trainer.max_tokens=1000000000", resume=True)
    assert resumed.metrics == whole_run.metrics


@pytest.mark.long
def test_budget_spent_by_the_last_step_finishes(whole_run: Training, tmp_path: Path) -> None:
    finished = Training(tmp_path, f"rllm.trainer.max_tokens={whole_run.tokens[-1]}")
    assert finished.metrics == whole_run.metrics


@pytest.mark.long
def test_run_without_budget_counts_nothing(tmp_path: Path) -> None:
    run = Training(tmp_path, "rllm.trainer.total_batches=1")
    assert not any(name.startswith("budget/") for line in run.metrics for name in line)


def test_cost_is_the_sum_of_all_prices() -> None:
    prices = BudgetParams(sampled_per_million=2.0, trained_per_million=10.0, per_hour=3.0)
    assert Spent(sampled_tokens=500_000, trained_tokens=100_000, hours=2.0).cost(prices) == 1.0 + 1.0 + 6.0


@pytest.mark.parametrize(
    ("limit", "key"),
    [
        ({"max_hours": 2.0}, "max_hours=2 is spent"),
        ({"max_tokens": 30}, "max_tokens=30 is spent"),
        ({"max_cost": 4.0, "per_hour": 2.0}, "max_cost=4 is spent"),
    ],
)
def test_earlier_starts_spend_the_budget(limit: dict[str, Any], key: str) -> None:
    budget = Budget(BudgetParams(**limit))
    assert budget.stop_reason() is None
    budget.load_state_dict({"sampled_tokens": 10, "trained_tokens": 20, "hours": 2.0})
    assert key in str(budget.stop_reason())
    again = Budget(BudgetParams(**limit))
    again.load_state_dict(budget.state_dict())
    assert again.total().hours >= 2.0
