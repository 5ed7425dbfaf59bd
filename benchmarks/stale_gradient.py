"""Whether the gradient of older, corrected tokens is that of fresh ones: ``python benchmarks/stale_gradient.py``.

`guess` trains on tokens that are S updates old. Before some updates, the weights of the moment and those of S updates
before play the same tasks again and again. Each batch gives a gradient at the weights of the moment, as in the first
optimiser step of an update. Printed are the cosine of the expected gradients and the length of one along the other,
both found from products of different batches, so that noise does not count; and the noise of one batch, the variance of
its gradient over the squared length of the expected one.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rllm.config.compose import compose
from rllm.config.layers import layer_from_dotted, layers_from_overrides
from rllm.planning.planner import make_plan
from rllm.runs.run_directory import RunDirectory
from rllm.training.loop import TrainingLoop
from rllm.training.setup import load_tasks
from rllm_backend_kit.loss import rollout_weights
from rllm_backend_kit.minibatches import minibatch_weights
from rllm_core.contracts.backend import RolloutCorrection
from rllm_core.contracts.loss import LossInput
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.stage import StagePlugin
from rllm_core.contracts.stage_context import StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import TokenBatch
from rllm_core.pipeline.rollout_stages import Generate, ImputeNames
from rllm_core.pipeline.transform_stages import CheckRewards, Group
from rllm_core.pipeline.update_stages import BuildBatch, EstimateAdvantages, Process
from rllm_core.plugins.registry import Registry
from rllm_core.updates.losses import ppo
from rllm_local.logprobs import token_outputs
from rllm_local.rows import micro_batches
from rllm_local.same_bits import fix_order_of_sums

AFTER_ALL_ROUNDS = 1_000_000
"""Rounds that no training step has: their rollouts are other ones."""
WEIGHTS: dict[str, tuple[Literal["token", "sequence"], float] | None] = {
    "not corrected": None,
    "per token, cap 2": ("token", 2.0),
    "per token, cap 5": ("token", 5.0),
    "per token, no cap": ("token", math.inf),
    "sequence, cap 2": ("sequence", 2.0),
}
CORRECTIONS = {
    name: None if chosen is None else RolloutCorrection(mode=chosen[0], cap=chosen[1], floor=0.0, beyond_cap="truncate")
    for name, chosen in WEIGHTS.items()
}


class Compare:
    """A stage that measures and changes nothing."""

    at: tuple[int, ...]
    ahead: int
    batches: int
    end: Callable[[], None]

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._context = context
        self._model: Any = context.backend._training.trainer.masters.model  # type: ignore[attr-defined]
        self._played = AFTER_ALL_ROUNDS

    async def __call__(self, step: TrainStep) -> None:
        if step.global_step == max(self.at):
            Compare.end()
        if step.global_step not in self.at:
            return
        now = step.weight_version
        fresh = [await self._batch(step, now) for _ in range(self.batches)]
        stale = [await self._batch(step, max(0, now - self.ahead)) for _ in range(self.batches)]
        print(f"before update {step.global_step + 1}; {_weights(stale)}")
        true = self._gradients(fresh, None)
        first, second = true[::2], true[1::2]
        print(f"  {'fresh':18} {_likeness(first, second)}")
        for name, correction in CORRECTIONS.items():
            print(f"  {name:18} {_likeness(true, self._gradients(stale, correction))}", flush=True)

    async def _batch(self, step: TrainStep, version: int) -> TokenBatch:
        """The step's tasks, played by a version of the weights, as an update would get them."""
        self._played += 1
        played = TrainStep(
            global_step=step.global_step,
            epoch=step.epoch,
            total_steps=step.total_steps,
            tasks=step.tasks,
            task_batch=self._played,
            weight_version=version,
            renderer=step.renderer,
        )
        for stage in (Generate, ImputeNames):
            await stage(self._context, NoParams())(played)
        played.weight_version = step.weight_version
        for stage in (Group, CheckRewards, BuildBatch, Process, EstimateAdvantages):
            await stage(self._context, NoParams())(played)
        return played.filled_batch

    def _gradients(self, batches: list[TokenBatch], correction: RolloutCorrection | None) -> Tensor:
        """(n_batch, n_weight) float64."""
        return torch.stack([self._gradient(batch, correction) for batch in batches])

    def _gradient(self, batch: TokenBatch, correction: RolloutCorrection | None) -> Tensor:
        """(n_weight,) float64, of the policy loss of a whole batch."""
        weights, aggregation = list(self._model.parameters()), self._context.config.rllm.algorithm.loss_agg_mode
        shares = minibatch_weights(batch, np.arange(batch.n_rows), aggregation, 1)
        total = torch.zeros(sum(weight.numel() for weight in weights), dtype=torch.float64)
        for part in micro_batches(batch, np.arange(batch.n_rows), 16384, self._model.device):
            inputs = LossInput.from_batch(
                batch, part.source, token_outputs(self._model, part, 1.0).logprobs, part.row_ids, 0
            )
            losses = ppo(inputs, self._context.loss_of(batch.roles[0]).params) * _corrected(inputs, correction)
            gradients = torch.autograd.grad((losses * part.column(shares)).sum(), weights)
            total += torch.cat([gradient.flatten() for gradient in gradients])
        return total


def _corrected(inputs: LossInput, correction: RolloutCorrection | None) -> Tensor:
    if correction is None:
        return torch.ones(())
    assert inputs.sampling_logprobs is not None
    return rollout_weights(inputs.old_logprobs, inputs.sampling_logprobs, inputs.row_ids, correction)


def _likeness(true: Tensor, other: Tensor) -> str:
    """Arguments: (n_batch, n_weight) gradients, of batches that have nothing in common."""
    product = float(true.mean(0) @ other.mean(0))
    of_true, of_other = _squared(true), _squared(other)
    noise = float(other.square().sum(1).mean()) / of_other - 1
    return f"cosine {product / (of_true * of_other) ** 0.5:.2f}, length {product / of_true:.2f}, noise {noise:.1f}"


def _squared(gradients: Tensor) -> float:
    """Squared length of the expected gradient, from products of different batches."""
    count = len(gradients)
    sums = gradients.sum(0)
    return max(float(sums @ sums - gradients.square().sum()) / (count * (count - 1)), 1e-30)


def _weights(batches: list[TokenBatch]) -> str:
    """How the ratios of old to sampling probability are spread."""
    differences = [(batch.old_logprobs - batch.sampling_logprobs)[batch.loss_mask] for batch in batches]
    ratios = np.exp(np.concatenate(differences).astype(np.float64))
    low, middle, high = np.quantile(ratios, [0.01, 0.5, 0.99])
    return (
        f"ratios: 1 % below {low:.2f}, half below {middle:.2f}, 1 % above {high:.2f}; "
        f"{np.mean(ratios > 2):.2%} above 2, {np.mean(ratios > 5):.2%} above 5; mean {ratios.mean():.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ahead", type=int, default=2, help="S, how many updates tokens are old (default: 2)")
    parser.add_argument("--steps", type=int, nargs="+", default=[30, 60, 120, 170], help="updates to stop before")
    parser.add_argument("--batches", type=int, default=40, help="batches of each kind, at least 4 (default: 40)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("words", nargs="*", help="further words of the command line, after --")
    arguments = parser.parse_args()
    Compare.at, Compare.ahead, Compare.batches = tuple(arguments.steps), arguments.ahead, arguments.batches
    fix_order_of_sums()
    registry = Registry.load()
    reads = frozenset({"batch", "batch.advantages", "batch.old_logprobs"})
    registry.add(
        StagePlugin(
            name="compare", summary="Measure.", params=NoParams, load=lambda: Compare, reads=reads, writes=frozenset()
        )
    )
    with tempfile.TemporaryDirectory() as directory:
        settings = {
            "rllm.env.name": "guess",
            "rllm.async_training.enable": True,
            "rllm.async_training.staleness_threshold": arguments.ahead,
            "rllm.pipeline.insert": [{"stage": "compare", "before": "update"}],
            "rllm.trainer.seed": arguments.seed,
            "rllm.trainer.test_freq": -1,
            "rllm.trainer.val_before_train": False,
            "rllm.trainer.save_freq": -1,
            "rllm.trainer.logger": [],
            "rllm.trainer.observers": [{"name": "journal", "keep": "off"}],
            "rllm.record": "off",
            "local.training_process": False,  # the model that is trained is looked at
            "rllm.trainer.output_dir": directory,
        }
        layers = [layer_from_dotted(settings, "the benchmark"), *layers_from_overrides(arguments.words)]
        plan = make_plan(compose(registry, layers), registry)
        opened = RunDirectory.open(plan.config.rllm.trainer)
        try:
            tasks = {f"{split}_tasks": load_tasks(plan, split) for split in ("train", "val")}
            loop = TrainingLoop(plan, opened, **tasks)
            Compare.end = loop.stop
            loop.fit()
        finally:
            opened.close()


if __name__ == "__main__":
    main()
