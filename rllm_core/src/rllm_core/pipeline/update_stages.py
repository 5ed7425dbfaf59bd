"""Built-in stages from groups to new weights: build_batch, process, advantages, update, log."""

from __future__ import annotations

from rllm_core.algorithms.estimation import RoleEstimator, divide_by_steps, estimate
from rllm_core.batch import build_batch
from rllm_core.config.algorithm_sections import EntropySection
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.estimator import ALWAYS_FILLED
from rllm_core.contracts.plugin import NoParams
from rllm_core.errors import PipelineError
from rllm_core.pipeline.context import StageContext
from rllm_core.pipeline.step import TrainStep
from rllm_core.seeding import derive_seed
from rllm_core.tracking.metrics import advantage_metrics, throughput_metrics


class BuildBatch:
    """Lays all trajectories end to end in one columnar batch."""

    def __init__(self, context: StageContext, params: NoParams) -> None:
        pass

    async def __call__(self, step: TrainStep) -> None:
        step.batch = build_batch(step.trajectory_groups)
        step.metrics["batch/rows"] = float(step.batch.n_rows)
        step.metrics["batch/tokens"] = float(len(step.batch.tokens))
        if not step.batch.n_rows:
            step.skip("no_sampled_tokens")


class Process:
    """Lets the backend fill the columns that estimators and losses need, such as log-probs of the current weights."""

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._context = context

    async def __call__(self, step: TrainStep) -> None:
        batch = step.filled_batch
        needs = frozenset[str]({"old_logprobs"})
        for role in batch.roles:
            needs |= self._context.estimator_of(role).plugin.needs | self._context.loss_of(role).plugin.needs
        needs -= ALWAYS_FILLED
        step.batch = await self._context.backend.process(batch, needs)
        missing = sorted(name for name in needs if getattr(step.batch, name, None) is None)
        if missing:
            raise PipelineError(
                f"The backend did not fill {', '.join(missing)}, which estimators or losses of this run need.",
                "Mend the backend's `process`, or its capabilities.",
            )


class EstimateAdvantages:
    """Calls each role's estimator once with all groups of that role; see also `rllm.stepwise_advantage`."""

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._context = context
        stepwise = context.config.rllm.stepwise_advantage
        self._normalize_by_steps = stepwise.enable and stepwise.normalize_by_steps
        self._loaded: dict[str, tuple[str, RoleEstimator]] = {}

    async def __call__(self, step: TrainStep) -> None:
        batch = step.filled_batch
        advantages = estimate(batch, self._estimator_of)
        if self._normalize_by_steps:
            advantages = divide_by_steps(batch, advantages)
        step.batch = batch.with_columns(advantages=advantages)
        step.metrics |= advantage_metrics(step.batch)

    def _estimator_of(self, role: str) -> tuple[str, RoleEstimator]:
        if role not in self._loaded:
            chosen = self._context.estimator_of(role)
            function = chosen.registered.load()
            self._loaded[role] = (chosen.plugin.name, lambda inputs: function(inputs, chosen.params))
        return self._loaded[role]


class Update:
    """One policy update; from here on rollouts use the new weights."""

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._context = context

    async def __call__(self, step: TrainStep) -> None:
        context, batch = self._context, step.filled_batch
        algorithm = context.config.rllm.algorithm
        plan = UpdatePlan(
            global_step=step.global_step,
            losses={role: context.loss_of(role) for role in batch.roles},
            aggregation=algorithm.loss_agg_mode,
            entropy_coeff=entropy_coeff(algorithm.entropy, step.global_step),
            seed=derive_seed(context.seed, "update", step.global_step),
        )
        step.metrics |= await context.backend.update(batch, plan)
        step.metrics["actor/entropy_coeff"] = plan.entropy_coeff
        await context.backend.publish(step.weight_version + 1)
        step.weight_version += 1


class Log:
    """Completes the step's metrics and sends them to the trackers."""

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._context = context

    async def __call__(self, step: TrainStep) -> None:
        step.metrics["train/epoch"] = float(step.epoch)
        step.metrics["train/weight_version"] = float(step.weight_version)
        step.metrics |= throughput_metrics(step)
        self._context.log(step.global_step, step.metrics)


def entropy_coeff(schedule: EntropySection, global_step: int) -> float:
    """Weight of the entropy bonus: linear from `coeff` at step 0 to `final_coeff` at `decay_steps`, then constant."""
    if schedule.decay_steps == 0:
        return schedule.coeff
    progress = min(1.0, global_step / schedule.decay_steps)
    return schedule.coeff + (schedule.final_coeff - schedule.coeff) * progress
