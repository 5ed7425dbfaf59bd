"""Inputs of an update on tokens of older weights, on the backend `local`."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import rllm_local.update
from rllm.config.compose import compose
from rllm.config.layers import layer_from_dotted
from rllm.planning.planner import make_plan
from rllm.runs.run_directory import RunDirectory
from rllm.training.loop import TrainingLoop
from rllm.training.setup import load_tasks
from rllm_backend_kit.loss import LossTerms, loss_terms
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.loss import LossInput
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.stage import StagePlugin
from rllm_core.contracts.stage_context import StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import TokenBatch
from rllm_core.plugins.registry import Registry
from rllm_local.columns import ColumnFiller

AHEAD, STEPS = 2, 6
SETTINGS: dict[str, Any] = {
    "rllm.env.name": "guess",
    "rllm.async_training.enable": True,
    "rllm.async_training.staleness_threshold": AHEAD,
    "rllm.pipeline.insert": [{"stage": "look", "before": "update"}],
    "rllm.rollout.n": 4,
    "rllm.trainer.total_batches": STEPS,
    "rllm.trainer.val_before_train": False,
    "rllm.trainer.test_freq": -1,
    "rllm.trainer.logger": [],
    "rllm.record": "off",
    "local.training_process": False,  # The test reads the trained model.
}


@dataclass
class Seen:
    """Inputs of the updates, step by step."""

    models: list[Any] = field(default_factory=list)
    """The trained model before each update, by version."""
    batches: list[TokenBatch] = field(default_factory=list)
    losses: list[list[tuple[LossInput, LossTerms]]] = field(default_factory=list)
    """The arguments of the loss of each micro-batch, by update."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    made = Seen()

    class Look:
        def __init__(self, context: StageContext, params: NoParams) -> None:
            self._backend: Any = context.backend

        async def __call__(self, step: TrainStep) -> None:
            made.models.append(copy.deepcopy(self._backend._training.trainer.masters.model))
            made.batches.append(step.filled_batch)
            made.losses.append([])

    def noted(inputs: LossInput, plan: UpdatePlan) -> LossTerms:
        terms = loss_terms(inputs, plan)
        made.losses[-1].append((inputs, terms))
        return terms

    registry = Registry.load()
    reads = frozenset({"batch", "batch.advantages", "batch.old_logprobs"})
    registry.add(
        StagePlugin(name="look", summary="Look.", params=NoParams, load=lambda: Look, reads=reads, writes=frozenset())
    )
    _train(registry, tmp_path_factory.mktemp("runs"), noted)
    return made


def _train(registry: Registry, directory: Path, noted: Any) -> None:
    settings = SETTINGS | {"rllm.trainer.output_dir": str(directory)}
    plan = make_plan(compose(registry, [layer_from_dotted(settings, "the test")]), registry)
    opened = RunDirectory.open(plan.config.rllm.trainer)
    tasks = {f"{split}_tasks": load_tasks(plan, split) for split in ("train", "val")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rllm_local.update, "loss_terms", noted)
        try:
            TrainingLoop(plan, opened, **tasks).fit()
        finally:
            opened.close()


def _logprobs(model: Any, batch: TokenBatch) -> NDArray[np.float32]:
    """Return the values of the sampled tokens, (n_sampled,)."""
    filler = ColumnFiller(model, temperature=1.0, max_tokens_per_microbatch=10_000, recompute_old_logprobs=True)
    return filler.columns(batch, frozenset({"old_logprobs"}))["old_logprobs"][batch.loss_mask]


@pytest.mark.long
def test_tokens_are_of_the_version_that_they_say(seen: Seen) -> None:
    for step, batch in enumerate(seen.batches):
        version = max(0, step - AHEAD)
        assert set(batch.versions[batch.loss_mask].tolist()) == {version}
        sampled = batch.sampling_logprobs[batch.loss_mask]
        np.testing.assert_allclose(sampled, _logprobs(seen.models[version], batch), atol=1e-5)


def test_that_version_differs_from_the_one_that_is_trained(seen: Seen) -> None:
    """Otherwise the test above proves little."""
    last = seen.batches[-1]
    assert np.abs(last.sampling_logprobs[last.loss_mask] - _logprobs(seen.models[-1], last)).mean() > 0.01


def test_old_log_probs_are_of_the_weights_before_the_update(seen: Seen) -> None:
    for model, batch in zip(seen.models, seen.batches, strict=True):
        assert batch.old_logprobs is not None
        np.testing.assert_allclose(batch.old_logprobs[batch.loss_mask], _logprobs(model, batch), atol=1e-5)


def test_the_loss_begins_at_the_ratio_one(seen: Seen) -> None:
    for given in seen.losses:
        inputs, _ = given[0]
        torch.testing.assert_close(inputs.logprobs.detach(), inputs.old_logprobs, atol=1e-5, rtol=0)


def test_weights_are_the_ratio_of_old_to_sampling_probability(seen: Seen) -> None:
    for inputs, terms in [each for given in seen.losses for each in given]:
        assert inputs.sampling_logprobs is not None
        assert terms.weights is not None
        ratios = (inputs.old_logprobs - inputs.sampling_logprobs).exp()
        torch.testing.assert_close(terms.weights, ratios.clamp(max=2.0))
