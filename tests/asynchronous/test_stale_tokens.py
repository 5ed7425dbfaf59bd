"""Inputs of an update on tokens of older weights, on the backend `local`."""

from __future__ import annotations

import copy
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import rllm_local.update
from rllm.config.compose import compose
from rllm.config.layers import layer_from_keys
from rllm.planning.planner import make_plan
from rllm.runs.run_directory import RunDirectory
from rllm.training.loop import TrainingLoop
from rllm.training.setup import load_tasks
from rllm_backend_kit.loss import LossTerms, loss_terms
from rllm_core.contracts.backend import BackendWrapper, UpdatePlan
from rllm_core.contracts.loss import LossInput
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.stage import StageContext, StagePlugin
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import TokenBatch
from rllm_core.plugins.registry import Registry
from rllm_local.columns import ColumnFiller

pytestmark = pytest.mark.smoke
AHEAD, STEPS = 2, 4
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
            while isinstance(self._backend, BackendWrapper):
                self._backend = self._backend.inner

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
    registry.add(StagePlugin(name="look", summary="Look.", load=lambda: Look, reads=reads, writes=frozenset()))
    settings = SETTINGS | {"rllm.trainer.output_dir": str(tmp_path_factory.mktemp("runs"))}
    plan = make_plan(compose(registry, [layer_from_keys(settings, "the test")]), registry)
    tasks = {f"{split}_tasks": load_tasks(plan, split) for split in ("train", "val")}
    with pytest.MonkeyPatch.context() as patch, closing(RunDirectory.open(plan.config.rllm.trainer)) as opened:
        patch.setattr(rllm_local.update, "loss_terms", noted)
        TrainingLoop(plan, opened, **tasks).fit()
    return made


def _logprobs(model: Any, batch: TokenBatch) -> NDArray[np.float32]:
    """Return the values of the sampled tokens, (n_sampled,)."""
    filler = ColumnFiller(model, temperature=1.0, max_tokens_per_microbatch=10_000, recompute_old_logprobs=True)
    return filler.columns(batch, frozenset({"old_logprobs"}))["old_logprobs"][batch.loss_mask]


def test_tokens_are_of_the_version_that_they_say(seen: Seen) -> None:
    for step, batch in enumerate(seen.batches):
        version = max(0, step - AHEAD)
        assert set(batch.versions[batch.loss_mask].tolist()) == {version}
        sampled = batch.sampling_logprobs[batch.loss_mask]
        np.testing.assert_allclose(sampled, _logprobs(seen.models[version], batch), atol=1e-5)
    assert np.abs(sampled - _logprobs(seen.models[-1], batch)).mean() > 0.01, "the trained version gives equal values"


def test_old_log_probs_use_weights_before_the_update(seen: Seen) -> None:
    for model, batch, losses in zip(seen.models, seen.batches, seen.losses, strict=True):
        assert batch.old_logprobs is not None
        np.testing.assert_allclose(batch.old_logprobs[batch.loss_mask], _logprobs(model, batch), atol=1e-5)
        inputs, _ = losses[0]
        torch.testing.assert_close(inputs.logprobs.detach(), inputs.old_logprobs, atol=1e-5, rtol=0)


def test_weights_are_ratios_of_old_to_sampling_probability(seen: Seen) -> None:
    for inputs, terms in [each for losses in seen.losses for each in losses]:
        assert inputs.sampling_logprobs is not None
        assert terms.weights is not None
        ratios = (inputs.old_logprobs - inputs.sampling_logprobs).exp()
        torch.testing.assert_close(terms.weights, ratios.clamp(max=2.0))
