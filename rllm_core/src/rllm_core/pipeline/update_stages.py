"""Built-in stages from groups to new weights: build_batch, process, advantages, update, log."""

from __future__ import annotations

from typing import Any

import numpy as np

from rllm_core.algorithms.columns import mark_tokens
from rllm_core.algorithms.estimation import EstimatorObjects, PrecomputedAdvantages, divide_by_steps, estimate
from rllm_core.algorithms.precomputed import find_step_advantages, groups_with_advantages
from rllm_core.contracts.backend import KlTerm, RolloutCorrection, UpdatePlan
from rllm_core.contracts.estimator import ALWAYS_FILLED, FILLED_BY_STAGES
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.stage import StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.errors import PipelineError
from rllm_core.pipeline.batch_checks import check_old_logprobs, check_sampling_logprobs, check_staleness
from rllm_core.pipeline.metrics import advantage_metrics, staleness_metrics, throughput_metrics
from rllm_core.pipeline.pipeline import ContextStage
from rllm_core.schema.algorithm_sections import AlgorithmSection, EntropySection, RolloutCorrectionSection
from rllm_core.seeding import derive_seed


class BuildBatch(ContextStage):
    """Concatenates all trajectories in one columnar batch."""

    async def __call__(self, step: TrainStep) -> None:
        step.batch = build_batch(step.trajectory_groups)
        step.metrics["batch/rows"] = float(step.batch.n_rows)
        step.metrics["batch/tokens"] = float(len(step.batch.tokens))
        with_rows = set(step.batch.trajectory.tolist())
        trajectories = [(group, each) for group in step.trajectory_groups for each in group.trajectories]
        for index, (group, trajectory) in enumerate(trajectories):
            if index not in with_rows:
                step.decide("dropped", "build_batch/no_sampled_tokens", [trajectory], group)
        if step.batch.n_rows:
            step.metrics |= staleness_metrics(step.batch, step.weight_version)
            if most := self._context.config.rllm.async_training.staleness:
                check_staleness(step, most)
        else:
            step.skip("no_sampled_tokens")


class Process(ContextStage):
    """Calls the backend to fill the columns that estimators and losses need, such as log-probs under the current
    weights."""

    async def __call__(self, step: TrainStep) -> None:
        batch = step.filled_batch
        self._check_sampler(batch)
        needs = (self._context.needs | {"old_logprobs"}) - ALWAYS_FILLED - FILLED_BY_STAGES
        step.batch = await self._context.backend.process(batch, needs)
        missing = sorted(name for name in needs if getattr(step.batch, name, None) is None)
        if missing:
            raise PipelineError(
                "missing-estimator-input",
                f"The backend did not fill {', '.join(missing)}, which estimators or losses of this run need.",
                "Fill these fields in the backend's `process`, or remove the names from its `capabilities`.",
            )
        check_old_logprobs(step.batch)

    def _check_sampler(self, batch: TokenBatch) -> None:
        correction = self._context.config.rllm.algorithm.rollout_correction
        if correction.is_active:
            setting = "reject" if correction.tis_mode is None else f"tis_mode={correction.tis_mode}"
            check_sampling_logprobs(batch, f"rllm.algorithm.rollout_correction.{setting}")
        for role in batch.roles:
            for plugin in (self._context.estimator_of(role).plugin, self._context.loss_of(role).plugin):
                if "sampling_logprobs" in plugin.needs:
                    check_sampling_logprobs(batch, f"{plugin.kind.capitalize()} {plugin.name!r} of role {role!r}")


class EstimateAdvantages:
    """Calls each role's estimator once with all groups of the role; see also `rllm.stepwise_advantage`.

    Groups with precomputed advantages keep them if `rllm.algorithm.use_precomputed_advantage` is true.
    """

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._context = context
        stepwise = context.config.rllm.stepwise_advantage
        self._normalize_by_steps = stepwise.enable and stepwise.normalize_by_steps
        self._objects = EstimatorObjects()

    async def __call__(self, step: TrainStep) -> None:
        batch = step.filled_batch
        algorithm = self._context.config.rllm.algorithm
        precomputed = self._read_step_advantages(step, algorithm)
        estimates = estimate(
            batch,
            self._context.estimator_of,
            objects=self._objects,
            precomputed=precomputed,
            algorithm_config=algorithm,
        )
        advantages = estimates.advantages
        if self._normalize_by_steps:
            divided = divide_by_steps(batch, advantages)
            kept = False if precomputed is None else mark_tokens(batch, precomputed.groups)
            advantages = np.where(kept, advantages, divided)
        columns = {"advantages": advantages}
        if estimates.returns is not None:
            columns["returns"] = estimates.returns
        step.batch = batch.with_columns(**columns)
        step.estimators, step.baselines = estimates.estimators, estimates.baselines
        step.metrics |= advantage_metrics(step.batch)

    def state_dict(self) -> dict[str, Any]:
        return self._objects.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._objects.load_state_dict(state)

    def _read_step_advantages(self, step: TrainStep, algorithm: AlgorithmSection) -> PrecomputedAdvantages | None:
        """Return the precomputed advantages, and report metrics about them."""
        batch = step.filled_batch
        if not algorithm.use_precomputed_advantage:
            if ignored := int(groups_with_advantages(batch.groups).sum()):
                step.metrics["advantage/precomputed_ignored"] = ignored / len(batch.groups)
            return None
        found = find_step_advantages(batch, algorithm.on_precomputed_mismatch)
        step.metrics["advantage/precomputed"] = int(found.precomputed.groups.sum()) / max(len(batch.groups), 1)
        step.metrics["advantage/precomputed_mismatched"] = float(found.mismatched_steps)
        return found.precomputed


class Update(ContextStage):
    """Updates the policy once. After it, rollouts use the new weights."""

    async def __call__(self, step: TrainStep) -> None:
        context, batch = self._context, step.filled_batch
        algorithm = context.config.rllm.algorithm
        plan = UpdatePlan(
            global_step=step.global_step,
            losses={role: context.loss_of(role) for role in batch.roles},
            aggregation=algorithm.loss_agg_mode,
            entropy_coeff=entropy_coeff(algorithm.entropy, step.global_step),
            seed=derive_seed(context.seed, "update", step.global_step),
            kl=KlTerm(beta=algorithm.kl_beta, estimator=algorithm.kl_estimator) if algorithm.kl_beta else None,
            rollout_correction=_rollout_correction(algorithm.rollout_correction),
            trace=context.traces_tokens,
        )
        result = await context.backend.update(batch, plan)
        step.update_plan, step.update_result = plan, result
        step.metrics |= result.metrics
        step.metrics["actor/entropy_coeff"] = plan.entropy_coeff
        await context.backend.sync_weights(step.weight_version + 1)
        step.weight_version += 1


def _rollout_correction(settings: RolloutCorrectionSection) -> RolloutCorrection | None:
    if not settings.is_active:
        return None
    return RolloutCorrection(
        mode=settings.tis_mode,
        cap=settings.tis_cap,
        floor=settings.tis_floor,
        beyond_cap=settings.tis_beyond_cap,
        reject={str(name): bounds for name, bounds in settings.reject.items()},
        mean_weight=None if settings.tis_batch_normalize else 1.0,
    )


class Log(ContextStage):
    """Completes the step's metrics and sends them to the trackers."""

    async def __call__(self, step: TrainStep) -> None:
        step.metrics["train/epoch"] = float(step.epoch)
        step.metrics["train/weight_version"] = float(step.weight_version)
        step.metrics |= throughput_metrics(step)
        self._context.log(step.global_step, step.metrics)


def entropy_coeff(schedule: EntropySection, global_step: int) -> float:
    """Return the weight of the entropy bonus: linear from `coeff` at step 0 to `final_coeff` at `decay_steps`, then
    constant."""
    if schedule.decay_steps == 0:
        return schedule.coeff
    progress = min(1.0, global_step / schedule.decay_steps)
    return schedule.coeff + (schedule.final_coeff - schedule.coeff) * progress
