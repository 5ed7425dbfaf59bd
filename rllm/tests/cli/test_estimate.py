"""The estimate of a dry run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rllm.cli.estimate import StepMeans, estimate_run
from rllm.config.compose import compose
from rllm.config.layers import layers_from_overrides
from rllm.planning.planner import make_plan
from rllm_core.plugins.registry import Registry


def make_line(seconds: float, speed: float, trained: float | None = None) -> dict[str, Any]:
    line: dict[str, Any] = {"step": 0, "time/step": seconds, "time/tokens_per_second": speed}
    return line if trained is None else line | {"budget/trained_tokens": trained}


def test_means_ignore_the_first_step() -> None:
    lines = [{"step": -1, "val/x": 1.0}, make_line(90.0, 1.0, 500.0), make_line(2.0, 100.0, 800.0)]
    assert StepMeans.from_metrics(lines) == StepMeans(steps=1, seconds=2.0, sampled=200.0, trained=300.0)
    assert StepMeans.from_metrics(lines[:2]) is None


@pytest.mark.parametrize(
    ("trained", "tokens", "cost"),
    [((0.0, 5000.0), "trained tokens  50,000", "0.82"), ((None, None), "not counted", "0.32")],
)
def test_estimate_multiplies_the_means_of_a_step(
    tmp_path: Path, trained: tuple[float | None, float | None], tokens: str, cost: str
) -> None:
    run = tmp_path / "p" / "a"
    run.mkdir(parents=True)
    steps = [make_line(9.0, 1.0, trained[0]), make_line(36.0, 100.0, trained[1])]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps))
    registry = Registry.load()
    keys = [
        "rllm.env.name=guess",
        f"rllm.trainer.output_dir={tmp_path}",
        "rllm.trainer.project_name=p",
        "rllm.trainer.experiment_name=a",
        "rllm.trainer.total_epochs=5",
        "rllm.trainer.prices={sampled_per_million: 2, trained_per_million: 10, per_hour: 2.5}",
    ]
    plan = make_plan(compose(registry, layers_from_overrides(keys)), registry)
    found = estimate_run(plan, steps_per_epoch=2)
    assert found is not None
    heading, time, sampled, counted, total = found.lines()
    assert heading.startswith("Estimate for 10 steps, from 1 step of ")
    assert time.endswith("0.10 hours")
    assert sampled.endswith("36,000")
    assert tokens in counted
    assert total.endswith(cost)
    assert estimate_run(plan, steps_per_epoch=None) is None
