"""When weights are checked, and what a check leaves in metrics, checkpoints and on the terminal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_models import random_batch
from weight_faults import PLAN, RUN

from rllm.builtin.weight_check.observer import WeightCheck, WeightCheckParams, make_probe
from rllm.builtin.weight_check.plugin import rllm_observers
from rllm.builtin.weight_check.verdicts import Scores
from rllm_core.contracts.backend import Backend
from rllm_core.contracts.weight_comparison import Probe, WeightComparison
from rllm_core.errors import BackendError
from rllm_core.schema.run_config import RunConfig
from rllm_plugin_kit.fakes import FakeBackend

BATCH = random_batch([(5, 60)] * 8)
TOKENS = int(BATCH.loss_mask.sum())


class Comparison(WeightComparison):
    vocabulary, max_context, layers, dtype = 100, 512, 2, "float32"

    def __init__(self) -> None:
        self.version = 0
        self.scored: list[int] = []
        self.probes: list[Probe] = []
        self.stale_since: int | None = None

    def score(self, version: int, probe: Probe) -> Scores:
        return -np.random.default_rng(version).uniform(1, 5, probe.n_scores).astype(np.float32)

    async def of_trainer(self, probe: Probe) -> Scores:
        self.scored.append(self.version)
        self.probes.append(probe)
        return self.score(self.version, probe)

    async def of_samplers(self, probe: Probe) -> Mapping[str, Scores]:
        version = self.version if self.stale_since is None else self.stale_since
        return {"one": self.score(version, probe)}


class ChangingBackend(FakeBackend):
    """Changes its weights in each update."""

    def __init__(self, comparison: Comparison | None) -> None:
        self.comparison = comparison

    async def start(self, run: Any) -> Any:
        return None

    async def sync_weights(self, version: int) -> None:
        if self.comparison is not None:
            self.comparison.version = version

    def weight_comparison(self) -> WeightComparison | None:
        return self.comparison


class Run:
    """A run without a training loop."""

    def __init__(self, comparison: Comparison | None, **options: Any) -> None:
        self.check = WeightCheck(WeightCheckParams(**options))
        self.backend: Backend = self.check.wrap_backend(ChangingBackend(comparison), RUN)
        self.version = 0
        self.metrics: list[dict[str, float]] = []
        asyncio.run(self.backend.start(None))  # type: ignore[arg-type]

    def step(self) -> None:
        result = asyncio.run(self.backend.update(BATCH, PLAN))
        self.metrics.append({name: value for name, value in result.metrics.items() if name.startswith("weights/")})
        self.version += 1
        asyncio.run(self.backend.sync_weights(self.version))

    def steps(self, number: int) -> Run:
        for _ in range(number):
            self.step()
        return self

    def resume(self, saved: Run) -> Run:
        self.check.load_state_dict(json.loads(json.dumps(saved.check.state_dict())))
        asyncio.run(self.backend.load(Path()))
        self.version = saved.version
        asyncio.run(self.backend.sync_weights(self.version))
        return self


def test_probe_is_fixed_and_in_the_vocabulary() -> None:
    probe, again = make_probe(50, 72), make_probe(50, 72)
    assert (probe.tokens.shape, probe.prompt, probe.n_scores) == ((2, 72), 8, 128)
    assert np.array_equal(probe.tokens, again.tokens)
    assert 0 <= probe.tokens.min() < probe.tokens.max() < 50


@pytest.mark.parametrize(("context", "length", "prompt"), [(512, 72, 8), (20, 20, 8), (5, 5, 4)])
def test_probe_fits_into_the_context(context: int, length: int, prompt: int) -> None:
    comparison = Comparison()
    comparison.max_context = context
    Run(comparison)
    (probe,) = comparison.probes
    assert (probe.tokens.shape, probe.prompt) == ((2, length), prompt)


def test_checks_follow_the_trained_tokens() -> None:
    comparison = Comparison()
    Run(comparison).steps(40)
    between = -(-50 * 144 // TOKENS)
    assert comparison.scored == [0, *range(1, 41, between)]


def test_option_every_sets_the_checked_versions() -> None:
    comparison = Comparison()
    Run(comparison, every=3).steps(7)
    assert comparison.scored == [0, 3, 6]


def test_next_update_reports_a_check_once() -> None:
    equal = {"weights/verdict": 0.0, "weights/largest_difference": 0.0}
    assert Run(Comparison(), every=2).steps(4).metrics == [equal, {}, equal, {}]


def test_stale_weights_stop_the_run() -> None:
    comparison = Comparison()
    run = Run(comparison, every=1).steps(2)
    comparison.stale_since = 2
    with pytest.raises(BackendError, match="After weight sync 3, one is unchanged since sync 2"):
        run.step()


def test_option_warn_reports_metrics_and_continues(capsys: pytest.CaptureFixture[str]) -> None:
    comparison = Comparison()
    run = Run(comparison, every=1, on_difference="warn").steps(1)
    comparison.stale_since = 1
    run.steps(2)
    assert [metrics["weights/verdict"] for metrics in run.metrics] == [0, 0, 2]
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert warning.startswith("warning: After weight sync 2, one is unchanged since sync 1.")


def test_resumed_run_checks_as_an_uninterrupted_one() -> None:
    whole, cut = Run(Comparison()).steps(5), Run(Comparison()).steps(5)
    comparison = Comparison()
    resumed = Run(comparison).resume(cut)
    assert comparison.scored == [0, 5]
    assert resumed.check.state_dict() == whole.check.state_dict()
    for run in (whole, resumed):
        run.steps(40)
    assert resumed.check.state_dict() == whole.check.state_dict()
    assert resumed.metrics == whole.metrics[5:]


def test_earlier_scores_survive_a_resume() -> None:
    comparison = Comparison()
    resumed = Run(comparison, every=1).resume(Run(Comparison(), every=1).steps(3))
    comparison.stale_since = 1
    with pytest.raises(BackendError, match="After weight sync 4, one is unchanged since sync 1"):
        resumed.step()


def test_weights_of_a_checkpoint_are_checked() -> None:
    comparison = Comparison()
    run = Run(comparison, every=1)
    comparison.stale_since = 0
    with pytest.raises(BackendError, match="After weight sync 3, one is unchanged since sync 0"):
        run.resume(Run(Comparison(), every=1).steps(3))


def test_run_without_comparison_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert Run(None).steps(3).metrics == [{}, {}, {}]
    assert capsys.readouterr().err.count("not checked") == 1


def test_diverged_trainer_is_not_judged() -> None:
    comparison = Comparison()
    run = Run(comparison, every=1)
    comparison.score = lambda version, probe: np.full(probe.n_scores, np.nan, np.float32)  # type: ignore[method-assign]
    run.steps(2)
    assert run.metrics == [{"weights/verdict": 0.0, "weights/largest_difference": 0.0}, {}]


@pytest.mark.parametrize(
    ("stages", "joins"),
    [
        (None, True),
        (["generate", "update"], True),
        ([{"name": "generate"}], True),
        (["examples", "update", "log"], False),
        (["reward_model", "update", "log"], False),
    ],
)
def test_only_runs_that_generate_are_checked(stages: Any, joins: bool) -> None:
    (plugin,) = rllm_observers()
    assert plugin.joins is not None
    config = RunConfig.model_validate({"rllm": {"pipeline": {"stages": stages}}})
    assert plugin.joins(config) == joins
