"""A run's own episodes, rescored from the command line: its own advantages come out again, and others are compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from written_distribution import write_distribution

pytestmark = pytest.mark.usefixtures("with_view")

RUN = "runs/rllm-training/default"
STRANGER = """
from rllm_core.contracts.estimator import Advantages, EstimatorPlugin
from rllm_core.contracts.plugin import NoParams
from rllm_core.plugins import hookimpl

def best_only(inputs, params):
    import numpy as np
    best = np.maximum.reduceat(inputs.rewards, inputs.group_offsets[:-1])
    return Advantages(values=3 * (inputs.rewards - np.repeat(best, np.diff(inputs.group_offsets))))

@hookimpl
def rllm_estimators():
    return [EstimatorPlugin(name="best_only", summary="Below the best.", params=NoParams, load=lambda: best_only)]
"""


@pytest.fixture
def stranger(tmp_path: Path, environ: dict[str, str]) -> None:
    """A third party's package with an estimator."""
    write_distribution(tmp_path, "stranger", STRANGER)
    environ["PYTHONPATH"] = str(tmp_path)


def _train(rllm: Any, *words: str) -> None:
    few = (
        "rllm.trainer.total_batches=3",
        "data.train_batch_size=8",
        "rllm.trainer.val_before_train=false",
        "rllm.trainer.test_freq=-1",
    )
    result = rllm("train", "guess", "rllm.record=tokens", "rllm.rollout.n=8", *few, *words)
    assert result.returncode == 0, result.stderr


def _rescored(rllm: Any, *options: str) -> dict[str, Any]:
    result = rllm("rescore", RUN, "--json", *options)
    assert result.returncode == 0, result.stderr
    data: dict[str, Any] = json.loads(result.stdout)
    return data


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((), ()),
        (("--estimator", "reinforce_plus_plus_baseline", "rllm.compact_filtering.enable=true"), ()),
        (("--estimator", "reinforce_plus_plus", "--grouping", "role"), ()),
        # Some steps play several rounds, in which tasks come again.
        (("rllm.rejection_sample.enable=true", "rllm.rejection_sample.mode=dynamic"), ("--rejection", "dynamic")),
    ],
)
def test_rescoring_with_the_runs_own_estimator_gives_the_runs_own_metrics(
    forked_rllm: Any, tmp_path: Path, words: tuple[str, ...], options: tuple[str, ...]
) -> None:
    _train(forked_rllm, *words)
    data = _rescored(forked_rllm, *options)
    logged = [json.loads(line) for line in (tmp_path / RUN / "metrics.jsonl").read_text().splitlines()]
    trained = {
        line["step"]: {name: value for name, value in line.items() if name.startswith("advantage/")}
        for line in logged
        if any(name.startswith("advantage/") for name in line)
    }
    label = data["setups"][0]
    assert {step["step"]: step["metrics"].get(label, {}) for step in data["steps"] if step["metrics"]} == trained
    assert trained
    assert data["reproduction"] == {"steps": 3, "equal": 3, "first_deviation": None}


@pytest.mark.slow
def test_other_estimators_are_compared_a_third_partys_too(forked_rllm: Any, stranger: None) -> None:
    _train(forked_rllm)
    names = ("{name: grpo, norm_adv_by_std_in_grpo: true}", "rloo", "reinforce", "opo", "best_only")
    data = _rescored(forked_rllm, *(word for name in names for word in ("--estimator", name)))
    assert data["setups"][-1] == "best_only"
    for group in data["groups"]:
        rewards = group["rewards"]
        assert group["advantages"][-1] == pytest.approx([3 * (reward - max(rewards)) for reward in rewards])
