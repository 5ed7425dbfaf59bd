"""The check in a run of the training loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from weight_faults import SENT, faulty_copies

from rllm.config.compose import compose
from rllm.config.layers import layers_from_overrides
from rllm.planning.planner import make_plan
from rllm.runs.run_directory import RunDirectory
from rllm.training.loop import TrainingLoop
from rllm.training.setup import load_tasks
from rllm_core.errors import BackendError
from rllm_core.plugins.registry import Registry

SETTINGS = (
    "rllm.env.name=sum",
    "rllm.rollout.n=4",
    "data.train_batch_size=4",
    "data.max_response_length=4",
    "rllm.trainer.val_before_train=false",
    "rllm.trainer.total_batches=4",
    "rllm.trainer.logger=[]",
    # Two weight versions in one process, so that weights are copied.
    "rllm.async_training.enable=true",
    "rllm.async_training.staleness_threshold=1",
    "local.training_process=false",
    # A gradient also without rewards.
    "rllm.algorithm.entropy.coeff=0.01",
    "training.learning_rate=0.01",
)


def train(directory: Path, *options: str) -> list[dict[str, Any]]:
    """Train, and return the metrics of each step."""
    registry = Registry.load()
    keys = [*SETTINGS, f"rllm.trainer.output_dir={directory}", *options]
    plan = make_plan(compose(registry, layers_from_overrides(keys)), registry)
    run = RunDirectory.open(plan.config.rllm.trainer, overwrite=True)
    try:
        TrainingLoop(plan, run, train_tasks=load_tasks(plan, "train"), val_tasks=()).fit()
        return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    finally:
        run.close()


@pytest.mark.long
def test_fault_stops_the_run_at_its_sync(tmp_path: Path) -> None:
    options = "rllm.trainer.observers=[{name: weight_check, every: 1}]"
    with (
        faulty_copies(SENT["sync of step k - 1"][0]),
        pytest.raises(BackendError, match=r"After weight sync 2, the sampler is unchanged since sync 1\."),
    ):
        train(tmp_path, options)


@pytest.mark.long
def test_metrics_have_the_checks_of_a_clean_run(tmp_path: Path) -> None:
    first, second, *others = train(tmp_path)
    assert first["weights/verdict"] in (0, 1)
    assert second["weights/largest_difference"] < 1e-4
    assert not any("weights/verdict" in metrics for metrics in others)
